"""Cases of AReaL's trainer that the job of `tests/real/contracts` does not have: Ray's workers, failures,
and a tracer without steps.
"""

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
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    cell.adapters["areal.scopes"] = {"status": "attached"}
    yield tmp_path
    areal._jobs.clear()
    cell.adapters.clear()
    stepprof.shutdown()


def trainer(own=None, **workers):
    """Return a trainer with the given workers of each role and the configuration of AReaL's own tracer."""
    scheduler = SimpleNamespace(_workers=workers, _colocated_roles={"ref": "actor"})
    return SimpleNamespace(
        scheduler=scheduler, rollout=None, rollout_alloc=None, config=SimpleNamespace(perf_tracer=own)
    )


class TestProcesses:
    def test_groups_that_share_their_workers(self) -> None:
        """The reference model runs in the actor's processes, which follow the windows of both."""
        first, second = SimpleNamespace(_actor_id="a"), SimpleNamespace(_actor_id="b")
        workers = {"actor": [SimpleNamespace(actor=first)], "critic": [SimpleNamespace(actor=second)]}
        assert areal._ranks(trainer(**workers).scheduler) == [
            ([first], ["actor", "advantage", "weight_sync", "ref"]),
            ([second], ["critic"]),
        ]

    def test_workers_without_actors(self) -> None:
        """The workers of the local scheduler are plain processes, not actors, and are not attached."""
        assert areal._ranks(trainer(actor=[SimpleNamespace(process=1)]).scheduler) == []

    def test_a_loop_in_each_rank(self) -> None:
        """Without a scheduler, where each rank has its own loop, there are no workers."""
        assert areal._ranks(None) == []

    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group cannot be attached, ConfigError is raised and no session is left."""
        with pytest.raises(ConfigError):
            areal._training_begins(
                trainer(actor=[SimpleNamespace(actor=SimpleNamespace(_actor_id="a"))]), (), {}
            )
        assert cell.session is None
        assert not areal._jobs

    def test_scopes_that_are_not_attached(self, environment) -> None:
        """If the adapter of the scopes is not attached, no session starts, because the job would have no
        steps.
        """
        cell.adapters["areal.scopes"] = {"status": "name_missing"}
        assert not areal._training_begins(trainer(), (), {})
        assert cell.session is None


class TestLoop:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """If the training ends with an error, the session ends."""
        begun = areal._training_begins(trainer(), (), {})
        areal._scope_begins(None, ("train.rollout",), {"args": {"global_step": 4}})
        assert areal._jobs[0].loop.step == 5
        areal._training_ends(begun, RuntimeError("no samples"))
        assert cell.session is None
        assert not areal._jobs


class TestOwnProfiler:
    @pytest.mark.parametrize("own", [None, SimpleNamespace(profile_steps=None)])
    def test_no_steps(self, environment, monkeypatch, own) -> None:
        """If AReaL's tracer has no steps, the error names its option."""
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        with pytest.raises(ConfigError, match=r"perf_tracer\.profile_steps"):
            areal._training_begins(trainer(own), (), {})

    @pytest.mark.parametrize(("own", "reported"), [([8, 9], [[9]]), ([9], []), (None, [])])
    def test_steps_of_both_profilers_are_reported(self, environment, own, reported) -> None:
        """The steps that both profilers record are logged when the training begins."""
        with capture_logs() as lines:
            areal._training_begins(trainer(SimpleNamespace(profile_steps=own)), (), {})
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == reported
