"""What SkyRL's trainer does that the job of `tests/real/contracts` does not: fail, wait for samples, have groups that cannot be attached."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import skyrl
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job, and end its session."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    skyrl._jobs.clear()
    stepprof.shutdown()


def trainer(**groups):
    """Return a trainer at step 1 without processes, but for the groups that are given."""
    own = SimpleNamespace(enable=False)
    config = SimpleNamespace(trainer=SimpleNamespace(policy=SimpleNamespace(torch_profiler_config=own)))
    return SimpleNamespace(
        cfg=config, global_step=1, inference_engine_client=None, **{**dict.fromkeys(skyrl.GROUPS), **groups}
    )


def enter(name):
    """Enter a timer as its patch does."""
    timer = SimpleNamespace(message=name)
    skyrl._timer_begins(timer, (), {})
    return timer


def leave(timer, error=None):
    """Exit it."""
    skyrl.close_kept(timer, (type(error), error, None), {})


class TestJob:
    def test_waiting_for_samples_is_the_rollout(self, environment) -> None:
        """The fully asynchronous trainer has no timer around its generation."""
        begun = skyrl._training_begins(trainer(), (), {})
        step = enter("step")
        for name in ("wait_for_generation_buffer", "train_critic_and_policy"):
            leave(enter(name))
        leave(step)
        skyrl._training_ends(begun, None)
        (run,) = list_runs(environment)
        assert [(each["name"], each["role"]) for each in read_spans(run, step=1)] == [
            ("rollout", "rollout"),
            ("train_critic_and_policy", None),
            ("step", None),
        ]
        assert cell.session is None

    def test_a_failed_step_is_closed(self, environment) -> None:
        """A failed step is closed even if it has not trained."""
        skyrl._training_begins(trainer(), (), {})
        step = enter("step")
        leave(step, RuntimeError("no samples"))
        assert skyrl._jobs[0].loop.step is None

    def test_timers_outside_a_job(self) -> None:
        """Without a trainer that trains, a timer opens nothing."""
        timer = enter("step")
        leave(timer)
        assert vars(timer) == {"message": "step"}


class TestProcesses:
    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group cannot be attached, no session is left behind."""
        group = SimpleNamespace(_actor_handlers=[object()])
        with pytest.raises(ConfigError):
            skyrl._training_begins(trainer(policy_model=group), (), {})
        assert cell.session is None
        assert not skyrl._jobs
