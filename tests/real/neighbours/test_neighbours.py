"""A job under other tools in the process: it prints and returns what it does without stepprof, and its step is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

JOB = """
import atexit, sys

if "gevent" in sys.argv:
    import gevent.monkey
    gevent.monkey.patch_all()
if "eventlet" in sys.argv:
    import eventlet
    eventlet.monkey_patch()
if "freezegun" in sys.argv:
    import freezegun
    freezegun.freeze_time("2020-01-01").start()
if "opentelemetry" in sys.argv:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
    tracer = trace.get_tracer("job")
    span = tracer.start_as_current_span("training").__enter__()
if "cProfile" in sys.argv:
    import cProfile
    profiler = cProfile.Profile()
    profiler.enable()

import time
from contextlib import nullcontext

step = region = lambda *_: nullcontext()
if "recorded" in sys.argv:
    import stepprof
    stepprof.init({"steps": "2", "output_dir": "runs"})
    step, region = stepprof.profile_step, stepprof.region

def work_of_job(number):
    with region("work"):
        time.sleep(0.01)
        return sum(range(number * 1000))

atexit.register(print, "the end of the job")
for number in (1, 2, 3):
    with step(number):
        print(number, work_of_job(number), flush=True)
if "opentelemetry" in sys.argv:
    print("the span is current:", trace.get_current_span() is not trace.INVALID_SPAN)
if "cProfile" in sys.argv:
    profiler.disable()
    calls = {getattr(entry.code, "co_name", ""): entry.callcount for entry in profiler.getstats()}
    print("calls of work_of_job:", calls["work_of_job"])
sys.exit(3)
"""
COMMANDS = {
    "scalene": ["-m", "scalene", "run", "--cpu-only", "--cpu-sampling-rate", "0.2", "-o", "scalene.json"],
    "memray": ["-m", "memray", "run", "--quiet", "-f", "-o", "memray.bin"],
    "ddtrace": [str(Path(sys.executable).with_name("ddtrace-run")), sys.executable],
}
"""Tools that start the job. The others are used by the job."""
QUIET = {
    "DD_TRACE_STARTUP_LOGS": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
}


def run(tool: str, folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Return the exit status and the output of the job."""
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, *COMMANDS.get(tool, []), "job.py", tool, *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment, **QUIET},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.timeout(850)
@pytest.mark.parametrize(
    "tool",
    ["cProfile", "ddtrace", "eventlet", "freezegun", "gevent", "memray", "opentelemetry", "scalene"],
)
def test_the_job_behaves_as_without_stepprof(tmp_path, tool) -> None:
    """The output and the exit status are the same, and the selected step has its trace."""
    alone = run(tool, tmp_path / "alone")
    assert "the end of the job" in alone[1], alone
    assert run(tool, tmp_path / "recorded", "recorded") == alone
    (found,) = list_runs(tmp_path / "recorded" / "runs")
    (window,) = read_step(found, 2)["windows"]
    assert (window["status"], len(window["artifacts"])) == ("complete", 1), window


YAPPI = """
import stepprof, torch, yappi

def work_of_job():
    torch.ones(4) + 1

stepprof.init({"steps": "2", "output_dir": "runs", "torch": {"with_stack": True}})
yappi.start()
for number in (1, 2, 3):
    with stepprof.profile_step(number):
        work_of_job()
yappi.stop()
print([each.ncall for each in yappi.get_func_stats() if each.name == "work_of_job"])
stepprof.shutdown()
"""


@pytest.mark.timeout(450)
def test_yappi_and_a_capture_with_stacks(tmp_path) -> None:
    """torch would end yappi's profile to record stacks: the step is not recorded, and the reason names yappi."""
    (tmp_path / "job.py").write_text(YAPPI)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[3]\n"), done.stderr
    (found,) = list_runs(tmp_path / "runs")
    (window,) = read_step(found, 2)["windows"]
    assert window["status"] == "skipped"
    assert window["error"].startswith("Busy: yappi is running")
