"""What ROLL's pipelines have that the skeleton of `tests/real/contracts` has not: workers, and a step that fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import roll


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job, and end its session."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    cell.adapters["roll.timers"] = {"status": "attached"}
    yield tmp_path
    roll._jobs.clear()
    cell.adapters.clear()
    stepprof.shutdown()


def cluster(*workers):
    """Return a cluster of workers."""
    return SimpleNamespace(workers=[*workers])


def pipeline(*, profiles=False):
    """Return a pipeline of 20 steps without workers."""
    return SimpleNamespace(
        actor_train=cluster(),
        state=SimpleNamespace(step=-1),
        pipeline_config=SimpleNamespace(profiler_timeline=profiles, max_steps=20),
    )


class TestGroups:
    def test_each_reference_model_has_its_own_workers(self) -> None:
        """Each has its own workers; the critic trains in the actor's phase."""
        pipeline = SimpleNamespace(
            actor_train=cluster("a"), critic=cluster("c"), references={"x": cluster("x"), "y": cluster("y")}
        )
        assert [*roll._groups(pipeline)] == [
            (["a"], ("actor", "weight_sync")),
            (["c"], ("critic", "actor")),
            (["x"], ("ref",)),
            (["y"], ("ref",)),
        ]

    def test_dpo_has_one_reference_model_and_no_critic(self) -> None:
        """DPO has one, and no critic."""
        pipeline = SimpleNamespace(actor_train=cluster("a"), reference=cluster("r"))
        assert [*roll._groups(pipeline)] == [(["a"], ("actor", "weight_sync")), (["r"], ("ref",))]

    def test_the_actor_is_the_reference(self) -> None:
        """A LoRA job computes the reference's probabilities with the actor."""
        assert [*roll._groups(SimpleNamespace(actor_train=cluster("a")))] == [
            (["a"], ("actor", "weight_sync", "ref"))
        ]


class TestPipeline:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """And the session ends with the run; step 0 is a step."""
        begun = roll._run_begins(pipeline(), (), {})
        roll._jobs[0].begin("step_total")
        assert roll._jobs[0].loop.step == 0
        roll._run_ends(begun, RuntimeError("no samples"))
        assert cell.session is None
        assert not roll._jobs

    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a cluster cannot be attached, no session is left behind."""
        unattached = SimpleNamespace(actor_train=cluster(SimpleNamespace(_actor_id="a")))
        with pytest.raises(ConfigError):
            roll._run_begins(unattached, (), {})
        assert cell.session is None


class TestOwnProfiler:
    @pytest.mark.parametrize(("profiles", "reported"), [(True, [[9]]), (False, [])])
    def test_a_profiler_that_cannot_be_replaced_is_reported(self, environment, profiles, reported) -> None:
        """The framework's profiler records every call of every step, so it must be left off."""
        with capture_logs() as lines:
            roll._run_begins(pipeline(profiles=profiles), (), {})
        stated = [each for each in lines if each["event"] == "adapter.other_profiler"]
        assert [each["steps"] for each in stated] == reported
        assert not any("STEPPROF_FROM" in each["reason"] for each in stated)
