"""What ROLL's pipelines have that the skeleton of `tests/real/contracts` has not: workers, and a step that fails."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import roll


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job, and end its session."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    roll._jobs.clear()
    stepprof.shutdown()


def cluster(*workers):
    """Return a cluster of workers."""
    return SimpleNamespace(workers=[*workers])


class TestGroups:
    def test_with_reference_models(self) -> None:
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

    def test_one_reference_model(self) -> None:
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
        begun = roll._run_begins(
            SimpleNamespace(actor_train=cluster(), state=SimpleNamespace(step=-1)), (), {}
        )
        roll._jobs[0].begin("step_total")
        assert roll._jobs[0].loop.step == 0
        roll._run_ends(begun, RuntimeError("no samples"))
        assert cell.session is None
        assert not roll._jobs

    def test_all_or_none(self, environment) -> None:
        """If a cluster cannot be attached, no session is left behind."""
        pipeline = SimpleNamespace(actor_train=cluster(SimpleNamespace(_actor_id="a")))
        with pytest.raises(ConfigError):
            roll._run_begins(pipeline, (), {})
        assert cell.session is None
