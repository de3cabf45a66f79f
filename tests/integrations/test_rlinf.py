"""Cases of RLinf's runner that the job of `tests/real/contracts` does not have: failures, workers, and
adapters loaded in workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import rlinf
from stepprof.recording.session import current_session


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job; end its session afterwards."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    cell.adapters["rlinf.timers"] = {"status": "attached"}
    yield tmp_path
    rlinf._jobs.clear()
    cell.adapters.clear()
    stepprof.shutdown()


def begin(runner):
    """Begin the run of a runner, as its patch does."""
    return rlinf._run_begins("global_step", rlinf.ACTOR, runner, (), {})


class TestRunner:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """If the timer of the step ends with an error, the step is closed. The end of the run ends the
        session.
        """
        begun = begin(SimpleNamespace(global_step=4, actor=None))
        close = rlinf._timer_begins(None, ("step",), {})
        assert rlinf._jobs[0].loop.step == 5
        rlinf._timer_ends(close, RuntimeError("no samples"))
        assert rlinf._jobs[0].loop.step is None
        rlinf._run_ends(begun, None)
        assert cell.session is None

    def test_a_failed_attachment_leaves_no_session(self, environment) -> None:
        """If a group of workers cannot be attached, ConfigError is raised and no session is left."""
        worker = SimpleNamespace(worker=SimpleNamespace(_actor_id="a"))
        with pytest.raises(ConfigError):
            begin(SimpleNamespace(global_step=0, actor=SimpleNamespace(worker_info_list=[worker])))
        assert cell.session is None
        assert not rlinf._jobs

    def test_timers_outside_a_job(self) -> None:
        """Without a runner, a timer starts no job."""
        close = rlinf._timer_begins(None, ("step",), {})
        rlinf._timer_ends(close, None)
        assert not rlinf._jobs


def profiling(steps, *, always=False):
    """Return a runner whose own profiler records some steps, counted from 0, or all twelve."""
    return SimpleNamespace(
        global_step=0, max_steps=12, actor=None, _profile_steps=steps, _profile_all_steps=always
    )


class TestOwnProfiler:
    @pytest.mark.parametrize(
        ("runner", "steps"),
        [(profiling({3, 5}), [4, 6]), (profiling(None, always=True), [*range(1, 13)])],
        ids=["some", "all"],
    )
    def test_stepprof_replaces_the_profiler(self, environment, monkeypatch, runner, steps) -> None:
        """stepprof records the steps of RLinf's profiler, which is switched off."""
        monkeypatch.delenv("STEPPROF_STEPS")
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        assert begin(runner)
        assert [each for each in range(20) if each in current_session().config.policy(None).steps] == steps
        assert (runner._profile_steps, runner._profile_all_steps) == (None, False)
        assert cell.adapters["rlinf.timers"]["configuration"] == "cluster.profiling.steps"

    def test_a_runner_without_steps(self, environment, monkeypatch) -> None:
        """If RLinf's profiler has no steps, the error names its option."""
        monkeypatch.setenv("STEPPROF_FROM", "framework")
        with pytest.raises(ConfigError, match=r"cluster\.profiling\.steps"):
            begin(profiling(None))

    def test_steps_of_both_profilers_are_reported(self, environment) -> None:
        """The steps that both profilers record are logged, and RLinf's profiler is unchanged."""
        runner = profiling({8, 10})
        with capture_logs() as lines:
            begin(runner)
        assert [each["steps"] for each in lines if each["event"] == "adapter.other_profiler"] == [[9]]
        assert runner._profile_steps == {8, 10}


class TestWorkers:
    def test_the_adapters_are_attached(self) -> None:
        """A worker on another node has no variables of stepprof. `rlinf.register` registers the adapters
        there.
        """
        program = "from stepprof.integrations import activation, rlinf; rlinf.register(); print(sorted(activation._registered))"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STEPPROF")}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert "rlinf.workers" in done.stdout
