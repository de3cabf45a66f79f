"""A job that a framework times by name, and the timers of codetiming."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import stepprof
from stepprof.integrations.patches import Patches
from stepprof.integrations.timed_job import TimedJob, codetiming_hooks
from stepprof.integrations.training_loop import ensure_session
from stepprof.run.runs import list_runs
from stepprof.run.spans import read_spans


class Timer:
    """Replace the timer of codetiming."""

    def __init__(self, name=None):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Start a session with patched timers; return a function that ends it and reads the spans of a step."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    module = ModuleType("codetiming")
    module.Timer = Timer
    monkeypatch.setitem(sys.modules, "codetiming", module)
    ensure_session("test", process="driver")
    patches = Patches("test")
    job = TimedJob("test", lambda: 3, {"generate": "rollout"}, ("total",), ("val",))
    running = [job]
    for hook in codetiming_hooks(lambda: running[0] if running else None):
        hook.make(patches)

    def end(step):
        stepprof.shutdown()
        (found,) = list_runs(tmp_path)
        return [(each["kind"], each["name"], each["role"]) for each in read_spans(found, step=step)]

    end.running = running
    yield end
    patches.undo()
    stepprof.shutdown()


class TestTimers:
    def test_timers_of_a_job_are_step_roles_or_regions(self, run) -> None:
        """One timer is the step, some are roles, one is the evaluation, and the others are regions."""
        with Timer("total"):
            for name in ("generate", "log"):
                with Timer(name):
                    pass
            with Timer("val"), Timer("generate"):
                pass
        assert run(3) == [
            ("window", "rollout", "rollout"),
            ("region", "log", None),
            ("region", "generate", "eval"),
            ("window", "eval", "eval"),
            ("window", "step", None),
        ]

    def test_timers_of_other_processes_are_regions(self, run) -> None:
        """Without a job each timer is a region; a timer without a name is not recorded."""
        run.running.clear()
        with Timer("total"), Timer():
            pass
        assert run(None) == [("region", "total", None)]

    def test_a_failed_timer_closes_its_window(self, run) -> None:
        """If the block of the step's timer raises, the step is closed and the exception is raised on."""
        with pytest.raises(RuntimeError), Timer("total"):
            raise RuntimeError("no samples")
        assert run.running[0].loop.step is None
