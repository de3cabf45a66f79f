"""Cases of SkyRL's trainer that the job of `tests/real/contracts` does not have: failures, waits for
samples, and groups that cannot be attached.
"""

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
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    skyrl._jobs.clear()
    stepprof.shutdown()


def trainer(**groups):
    """Return a trainer at step 1 that has no processes except the given groups."""
    own = SimpleNamespace(enable=False)
    config = SimpleNamespace(trainer=SimpleNamespace(policy=SimpleNamespace(torch_profiler_config=own)))
    return SimpleNamespace(
        cfg=config, global_step=1, inference_engine_client=None, **{**dict.fromkeys(skyrl.GROUPS), **groups}
    )


def enter(name):
    """Enter a timer as the patch does."""
    timer = SimpleNamespace(message=name)
    skyrl._timer_begins(timer, (), {})
    return timer


def leave(timer, error=None):
    """Exit a timer as the patch does."""
    skyrl.close_kept(timer, (type(error), error, None), {})


class TestJob:
    def test_waiting_for_samples_is_the_rollout(self, environment) -> None:
        """The fully asynchronous trainer has no timer around its generation, so its wait for samples is
        the rollout.
        """
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
        """If the timer of the step ends with an error, the step is closed, even without a training."""
        skyrl._training_begins(trainer(), (), {})
        step = enter("step")
        leave(step, RuntimeError("no samples"))
        assert skyrl._jobs[0].loop.step is None

    def test_timers_outside_a_job(self) -> None:
        """Without a job, a timer opens no window and no region."""
        timer = enter("step")
        leave(timer)
        assert vars(timer) == {"message": "step"}


class TestProcesses:
    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group cannot be attached, ConfigError is raised and no session is left."""
        group = SimpleNamespace(_actor_handlers=[object()])
        with pytest.raises(ConfigError):
            skyrl._training_begins(trainer(policy_model=group), (), {})
        assert cell.session is None
        assert not skyrl._jobs
