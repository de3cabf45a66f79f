"""Cases of ROLL's pipelines that the skeleton of `tests/real/contracts` does not have: workers, and a step
that fails.
"""

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
    """Configure a job; end its session afterwards."""
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
        """Each reference model has its own workers. The critic's workers also follow the actor's windows."""
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
        """A DPO job has groups for the actor and one reference model, and none for a critic."""
        pipeline = SimpleNamespace(actor_train=cluster("a"), reference=cluster("r"))
        assert [*roll._groups(pipeline)] == [(["a"], ("actor", "weight_sync")), (["r"], ("ref",))]

    def test_the_actor_is_the_reference(self) -> None:
        """Without a reference model, as in a LoRA job, the actor's workers also have the role `ref`."""
        assert [*roll._groups(SimpleNamespace(actor_train=cluster("a")))] == [
            (["a"], ("actor", "weight_sync", "ref"))
        ]


class TestPipeline:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """The job begins with step 0. If the run ends with an error, the session ends."""
        begun = roll._run_begins(pipeline(), (), {})
        roll._jobs[0].begin("step_total")
        assert roll._jobs[0].loop.step == 0
        roll._run_ends(begun, RuntimeError("no samples"))
        assert cell.session is None
        assert not roll._jobs

    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a cluster cannot be attached, ConfigError is raised and no session is left."""
        unattached = SimpleNamespace(actor_train=cluster(SimpleNamespace(_actor_id="a")))
        with pytest.raises(ConfigError):
            roll._run_begins(unattached, (), {})
        assert cell.session is None


class TestOwnProfiler:
    @pytest.mark.parametrize(("profiles", "reported"), [(True, [[9]]), (False, [])])
    def test_a_profiler_that_cannot_be_replaced_is_reported(self, environment, profiles, reported) -> None:
        """ROLL's profiler records every step and cannot be replaced, so it is logged if it is on. The line
        does not suggest STEPPROF_FROM.
        """
        with capture_logs() as lines:
            roll._run_begins(pipeline(profiles=profiles), (), {})
        stated = [each for each in lines if each["event"] == "adapter.other_profiler"]
        assert [each["steps"] for each in stated] == reported
        assert not any("STEPPROF_FROM" in each["reason"] for each in stated)
