"""What RLinf's runner does that the job of `tests/real/contracts` does not: fail, have workers, load the adapters in them."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import stepprof
from stepprof.errors import ConfigError
from stepprof.instrument.context import cell
from stepprof.integrations import rlinf


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Configure a job, and end its session."""
    for name, value in (("STEPS", "9"), ("BACKEND", "null"), ("OUTPUT_DIR", str(tmp_path))):
        monkeypatch.setenv(f"STEPPROF_{name}", value)
    yield tmp_path
    rlinf._jobs.clear()
    stepprof.shutdown()


def begin(runner):
    """Begin the run of a runner, as its patch does."""
    return rlinf._run_begins("global_step", rlinf.ACTOR, runner, (), {})


class TestRunner:
    def test_a_failed_step_is_closed(self, environment) -> None:
        """And the session ends with the run."""
        begun = begin(SimpleNamespace(global_step=4, actor=None))
        close = rlinf._timer_begins(None, ("step",), {})
        assert rlinf._jobs[0].loop.step == 5
        rlinf._timer_ends(close, RuntimeError("no samples"))
        assert rlinf._jobs[0].loop.step is None
        rlinf._run_ends(begun, None)
        assert cell.session is None

    def test_all_or_none(self, environment) -> None:
        """If a group cannot be attached, no session is left behind."""
        worker = SimpleNamespace(worker=SimpleNamespace(_actor_id="a"))
        with pytest.raises(ConfigError):
            begin(SimpleNamespace(global_step=0, actor=SimpleNamespace(worker_info_list=[worker])))
        assert cell.session is None
        assert not rlinf._jobs

    def test_timers_of_other_processes(self) -> None:
        """Without a run a timer is a region, and without a session nothing."""
        close = rlinf._timer_begins(None, ("step",), {})
        rlinf._timer_ends(close, None)
        assert not rlinf._jobs


class TestWorkers:
    def test_the_adapters_are_attached(self) -> None:
        """A worker on another node has no variable of stepprof; that of RLinf asks for it."""
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
