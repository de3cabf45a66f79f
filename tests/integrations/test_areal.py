"""What AReaL's trainer does that the job of `tests/real/contracts` does not: use Ray's workers, fail, be asked for steps that it has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import areal


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job, and end its session."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    cell.adapters["areal.scopes"] = {"status": "attached"}
    yield tmp_path
    areal._jobs.clear()
    cell.adapters.clear()
    stepprof.shutdown()


def trainer(own=None, **workers):
    """Return a trainer with the workers of each role that is given, and the configuration of AReaL's own tracer."""
    scheduler = SimpleNamespace(_workers=workers, _colocated_roles={"ref": "actor"})
    return SimpleNamespace(
        scheduler=scheduler, rollout=None, rollout_alloc=None, config=SimpleNamespace(perf_tracer=own)
    )


class TestProcesses:
    def test_groups_that_share_their_workers(self) -> None:
        """The reference model is in the actor's processes: these follow the windows of both."""
        first, second = SimpleNamespace(_actor_id="a"), SimpleNamespace(_actor_id="b")
        workers = {"actor": [SimpleNamespace(actor=first)], "critic": [SimpleNamespace(actor=second)]}
        assert areal._ranks(trainer(**workers).scheduler) == [
            ([first], ["actor", "advantage", "weight_sync", "ref"]),
            ([second], ["critic"]),
        ]

    def test_workers_without_actors(self) -> None:
        """Those of the local scheduler are plain processes."""
        assert areal._ranks(trainer(actor=[SimpleNamespace(process=1)]).scheduler) == []

    def test_a_loop_in_each_rank(self) -> None:
        """Without a scheduler there are no workers."""
        assert areal._ranks(None) == []

    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group cannot be attached, no session is left behind."""
        with pytest.raises(ConfigError):
            areal._training_begins(
                trainer(actor=[SimpleNamespace(actor=SimpleNamespace(_actor_id="a"))]), (), {}
            )
        assert cell.session is None
        assert not areal._jobs

    def test_scopes_that_are_not_attached(self, environment) -> None:
        """A trainer without scopes would have no steps: no session starts."""
        cell.adapters["areal.scopes"] = {"status": "name_missing"}
        assert not areal._training_begins(trainer(), (), {})
        assert cell.session is None


class TestLoop:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """The window is closed with the error, and the session ends with the training."""
        begun = areal._training_begins(trainer(), (), {})
        areal._scope_begins(None, ("train.rollout",), {"args": {"global_step": 4}})
        assert areal._jobs[0].loop.step == 5
        areal._training_ends(begun, RuntimeError("no samples"))
        assert cell.session is None
        assert not areal._jobs


class TestOwnProfiler:
    @pytest.mark.parametrize("own", [None, SimpleNamespace(profile_steps=None)])
    def test_no_steps(self, environment, monkeypatch, own) -> None:
        """A job that asks for the steps of AReaL's tracer must name some."""
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        with pytest.raises(ConfigError, match=r"perf_tracer\.profile_steps"):
            areal._training_begins(trainer(own), (), {})

    @pytest.mark.parametrize(("own", "reported"), [([8, 9], [[9]]), ([9], []), (None, [])])
    def test_steps_of_both_profilers_are_reported(self, environment, own, reported) -> None:
        """They are reported when the training begins."""
        with capture_logs() as lines:
            areal._training_begins(trainer(SimpleNamespace(profile_steps=own)), (), {})
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == reported
