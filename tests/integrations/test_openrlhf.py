"""Cases of OpenRLHF's trainer that the job of `tests/real/contracts` does not have: failures, samples of
another process, and early ends.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import openrlhf
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans

STATES = {"global_step": 0, "episode": 0}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    openrlhf._jobs.clear()
    stepprof.shutdown()


def trainer(episodes=1, **groups):
    """Return a trainer that has no processes except the given groups."""
    options = SimpleNamespace(train=SimpleNamespace(num_episodes=episodes))
    return SimpleNamespace(args=options, vllm_engines=None, **{**dict.fromkeys(openrlhf.GROUPS), **groups})


def train(step, error=None):
    """Run `train_step` as its patch does, and save if it succeeded."""
    openrlhf._training_ends(openrlhf._training_begins(None, ([], step), {}), error)
    if error is None:
        openrlhf._saving_ends(None, None)


def roles(folder, step):
    """Return the roles of the windows of a step."""
    (run,) = list_runs(folder)
    return [each["role"] for each in read_spans(run, step=step) if each["kind"] == "window"]


class TestJob:
    def test_samples_of_another_process(self, environment) -> None:
        """The asynchronous trainer gets its samples from a queue, so a step begins with the training."""
        openrlhf._fit_is_due(trainer(), (STATES,), {})
        train(0)
        train(1)
        stepprof.shutdown()
        assert [roles(environment, step) for step in (1, 2)] == [[None], [None]]

    def test_a_resumed_job_begins_after_the_checkpoints_step(self, environment) -> None:
        """In a resumed job the first rollout belongs to the step after that of the checkpoint."""
        openrlhf._fit_is_due(trainer(), (), {"checkpoint_states": {"global_step": 4, "episode": 0}})
        openrlhf.close_timer(openrlhf._rollout_begins(), None)
        train(4)
        stepprof.shutdown()
        assert roles(environment, 5) == ["rollout", None]

    def test_a_failed_step_is_closed(self, environment) -> None:
        """If the training raises, its step is closed, although no saving follows."""
        openrlhf._fit_is_due(trainer(), (STATES,), {})
        train(0, error=RuntimeError("out of memory"))
        assert openrlhf._jobs[0].loop.step is None

    def test_the_last_samples_end_the_session(self, environment) -> None:
        """The session ends after the last episode, because Ray then ends the process without a chance to
        write pending files.
        """
        openrlhf._fit_is_due(trainer(episodes=2), (STATES,), {})
        for _ in range(2):
            assert cell.session is not None
            openrlhf._samples_are_made((["sample"], None, 1, True))
            train(0)
        assert cell.session is None

    def test_no_samples_are_left(self, environment) -> None:
        """The last call returns no samples, and the session ends."""
        openrlhf._fit_is_due(trainer(), (STATES,), {})
        openrlhf._samples_are_made(([], None, 0, True))
        assert cell.session is None


class TestProcesses:
    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group cannot be attached, ConfigError is raised and no session is left."""
        group = SimpleNamespace(_actor_handlers=[object()])
        with pytest.raises(ConfigError):
            openrlhf._fit_is_due(trainer(actor_model_group=group), (STATES,), {})
        assert cell.session is None
        assert not openrlhf._jobs


class TestAdapters:
    def test_every_patch_is_among_the_needs(self) -> None:
        """Every patched function is among the names that the adapters check before they patch."""
        needs = {need for adapter in openrlhf.ADAPTERS for need in adapter.needs}
        assert {*openrlhf.PHASES, *openrlhf.STAGES, f"{openrlhf.TRAINER}.train_step"} <= needs
