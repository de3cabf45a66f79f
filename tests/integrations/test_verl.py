"""The windows that verl's timers open in the process of its trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.integrations import verl, verl_processes
from stepprof.integrations.training_loop import close_timer
from stepprof.recording.session import current_session
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


@pytest.fixture
def spans(tmp_path):
    """Return a function that ends the session and returns (name, kind, step, role) of every span."""
    stepprof.init({"steps": "9", "backend": "null", "output_dir": str(tmp_path)})

    def read():
        stepprof.shutdown()
        (run,) = list_runs(tmp_path)
        return [
            (each["name"], each["kind"], each["step"], each["role"])
            for step in (2, 3)
            for each in read_spans(run, step=step)
        ]

    yield read
    stepprof.shutdown()


@pytest.fixture
def trainer(monkeypatch):
    """Return a trainer at step 2 that this process drives."""
    trainer = SimpleNamespace(global_steps=2)
    monkeypatch.setattr(verl, "_drivers", [verl.Driver(trainer)])
    return trainer


def timer(name, error=None):
    """Run verl's timer as the patch does."""
    verl._timer_ends(verl._timer_begins(None, (name, {}), {}), error)


class TestDriver:
    def test_a_timer_is_the_window_of_its_role_and_a_region(self, spans, trainer) -> None:
        """A timer opens the window of its role and a region with verl's own name."""
        timer("update_actor")
        assert sorted(spans()) == [
            ("actor", "window", 2, "actor"),
            ("update_actor", "region", 2, "actor"),
        ]

    def test_the_timer_of_the_step_is_its_window_alone(self, spans, trainer) -> None:
        """The timer of the step opens only a window, because a region of the same length would be
        redundant.
        """
        timer("step")
        trainer.global_steps = 3
        timer("step")
        assert spans() == [("step", "window", 2, None), ("step", "window", 3, None)]

    def test_the_rollout_begins_before_its_timer(self, spans, trainer) -> None:
        """The window of the rollout begins with `prepare_step`, which sends the prompts, and ends with the
        timer `gen`.
        """
        close_timer(verl._prepare_begins(), None)
        timer("gen")
        assert sorted(spans()) == [
            ("gen", "region", 2, "rollout"),
            ("prepare_step", "region", 2, "rollout"),
            ("rollout", "window", 2, "rollout"),
        ]

    def test_a_second_rollout_in_a_step_has_a_window(self, spans, trainer) -> None:
        """A step with two timers `gen`, as in an asynchronous trainer, has two windows of the rollout."""
        timer("gen")
        timer("gen")
        assert [name for name, *_ in spans()].count("rollout") == 2

    def test_a_failed_step_closes_the_rollout(self, spans, trainer) -> None:
        """The step fails after the prompts were sent: the windows of the step and of the rollout are
        closed.
        """
        step = verl._timer_begins(None, ("step", {}), {})
        close_timer(verl._prepare_begins(), None)
        verl._timer_ends(step, RuntimeError("no prompts"))
        assert {name for name, *_ in spans()} == {"step", "rollout", "prepare_step"}

    def test_another_process_has_regions_only(self, spans) -> None:
        """In a process that is not the driver, such as an agent loop, timers are regions and open no
        windows.
        """
        timer("generate_sequences")
        timer("step")
        assert {kind for _, kind, *_ in spans()} <= {"region"}


class TestEnd:
    def test_a_step_that_fails_ends_the_session(self, spans, trainer) -> None:
        """If the step of the driver fails, the session ends. A fully asynchronous trainer ends so when its
        queue is empty.
        """
        timer("step", RuntimeError("no samples are left"))
        assert current_session() is None
        assert verl._drivers == []

    def test_a_step_of_another_process_ends_none(self, spans) -> None:
        """A failed step in a process that is not the driver, such as an agent loop, does not end its
        session.
        """
        timer("step", RuntimeError("no answer"))
        assert current_session() is not None


class TestAdapters:
    def test_every_patch_is_among_the_needs(self) -> None:
        """Every patched function is among the names that the adapters check before they patch."""
        needs = {need for adapter in verl.ADAPTERS for need in adapter.needs}
        patched = {*verl_processes.STAGES, verl_processes.RAY_ENVIRONMENT, verl.TIMER, f"{verl.TRAINER}.fit"}
        assert patched <= needs


def test_the_model_is_that_of_the_configuration() -> None:
    """The model's path is read from verl's configuration. If it is not there, the model is unknown."""
    model = {"path": "Qwen/Qwen3-8B"}
    assert verl._model_of({"actor_rollout_ref": {"model": model}}) == "Qwen/Qwen3-8B"
    for config in ({}, {"actor_rollout_ref": None}, {"actor_rollout_ref": {"model": "a"}}):
        assert verl._model_of(config) is None
