"""Run scripts in their own processes with torch loaded: a server imports torch once, and forks for
each script.

The server runs no op and prepares no profiler, so that its children are in the state of a fresh
process after its imports. The import of torch and of the modules for its profiler takes 3 s. The
tests of the end of a process need many processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

from ran import Ran

from stepprof.analysis.artifact_check import check_artifact
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

HELD_LOCK = """
lock, held = threading.Lock(), threading.Event()
def hold():
    with lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""
"""The beginning of a script. Another thread holds `lock` forever, so that a forked child that needs
the lock hangs.
"""

SERVER = """
import asyncio, faulthandler, gc, json, os, signal, sys, time, types, warnings
import multiprocessing.util, structlog, transitions, torch, torch.profiler, torch.utils.data
import torch._inductor.config

def answer(value):
    os.write(3, json.dumps(value).encode() + b"\\n")

def saving(kill):
    # a process that is about to die of SIGTERM by its own hand saves what it covered
    def kill_after_saving(pid, number):
        current = sys.modules["coverage"].Coverage.current()
        if pid == os.getpid() and number == signal.SIGTERM and current and signal.getsignal(number) is signal.SIG_DFL:
            current.save()
        kill(pid, number)
    return kill_after_saving

gc.collect()
gc.freeze()  # else each child looks at all of torch once more before it ends, which takes more than a second
answer("ready")
children = {}
for line in open(4, closefd=False):
    request = json.loads(line)
    if "wait" in request:
        pid, deadline = request["wait"], time.monotonic() + request["timeout"]
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done or time.monotonic() > deadline:
                break
            time.sleep(0.005)
        answer(os.waitstatus_to_exitcode(status) if done else None)
        continue
    child = os.fork()
    if child:
        answer(child)
        continue
    os.closerange(3, 5)
    for number, name in enumerate(("/dev/null", request["stdout"], request["stderr"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    faulthandler.register(signal.SIGRTMAX, file=2)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[0] = os.path.dirname(request["script"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage has a handler of its own
    if "coverage" in sys.modules:
        if not any(name.startswith("COVERAGE_PROCESS") for name in os.environ):  # see MEASURED in tests/conftest.py
            current = sys.modules["coverage"].Coverage.current()
            current.stop()
            current._auto_save = False
        os.kill = saving(os.kill)
        warnings.filterwarnings("ignore", category=sys.modules["coverage.exceptions"].CoverageWarning)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = request["script"]
    with open(request["script"]) as file:
        code = compile(file.read(), request["script"], "exec")
    exec(code, main.__dict__)
    if request["leave"]:
        main.stepprof.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    break
"""

PRELUDE = """
import logging, os, signal, sys, threading, time
import torch, stepprof
from stepprof import profile_step, region
logging.basicConfig(level="INFO", stream=sys.stderr, format="%(message)s")

def work(count=20):
    x = torch.ones(16, 16)
    for _ in range(count):
        x = x @ x * 1e-3
    return x

class When(logging.Handler):
    '''Does something in the middle of an act of stepprof: where it logs.'''
    def __init__(self, text, act, logger="stepprof"):
        super().__init__()
        self.text, self.act = text, act
        logging.getLogger(logger).addHandler(self)
    def emit(self, record):
        if self.act and self.text in record.getMessage():
            act, self.act = self.act, None
            act()

def wait_for_exports():
    while stepprof.state().pending_exports:
        time.sleep(0.005)
"""


class Running:
    """A script that is running."""

    def __init__(self, server: Server, pid: int, out: Path, err: Path) -> None:
        self.pid = pid
        self._server = server
        self._out, self._err = out, err

    @property
    def stdout(self) -> str:
        """Return the output so far."""
        return self._out.read_text()

    def wait_for(self, text: str, timeout: float = 60) -> Running:
        """Wait until the script has printed a text."""
        deadline = time.monotonic() + timeout
        while text not in self.stdout:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"no {text!r} in {self.stdout!r}\n{self._err.read_text()}")
            time.sleep(0.005)
        return self

    def send(self, number: int) -> Running:
        """Send a signal to the script."""
        os.kill(self.pid, number)
        return self

    def wait(self, timeout: float = 60) -> Ran:
        """Wait for the end of the script."""
        code = self._server.ask({"wait": self.pid, "timeout": timeout})
        if code is None:
            os.kill(self.pid, signal.SIGRTMAX)  # the script writes the stacks of its threads
            time.sleep(0.5)
            os.kill(self.pid, signal.SIGKILL)
            self._server.ask({"wait": self.pid, "timeout": 5})
            raise AssertionError(f"still running after {timeout} s\n{self.stdout}\n{self._err.read_text()}")
        return Ran(code, self.stdout, self._err.read_text())


class Server:
    """The process that forks for each script.

    Args:
        first: code that it runs before anything else, with Python's default warnings: imports beyond torch.
        env: its additional variables.
    """

    def __init__(self, first: str = "", env: Mapping[str, str] | None = None) -> None:
        answers, answer = os.pipe()
        requests, request = os.pipe()
        # the child gets them as descriptors 3 and 4, whatever their numbers are here
        launcher = f"import os, sys; os.dup2({answer}, 1003); os.dup2({requests}, 1004); os.dup2(1003, 3); os.dup2(1004, 4); os.closerange(5, 1100); exec(compile({first!r}, 'first', 'exec')); exec(compile({SERVER!r}, 'server', 'exec'))"
        self._process = subprocess.Popen(
            [sys.executable, *([] if first else ["-W", "error"]), "-c", launcher],
            pass_fds=(answer, requests),
            env={**os.environ, **(env or {})},
        )
        os.close(answer)
        os.close(requests)
        self._answers = os.fdopen(answers)
        self._requests = os.fdopen(request, "w")
        assert json.loads(self._answers.readline()) == "ready"

    def ask(self, request: Mapping[str, object]) -> int | None:
        """Send one request, and return its answer."""
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return json.loads(self._answers.readline())

    def start(
        self,
        script: Path,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        out: Path,
        err: Path,
        leave: bool,
    ) -> Running:
        """Start the script of a file, as Python would in that folder and environment."""
        pid = self.ask(
            {
                "script": str(script),
                "arguments": arguments,
                "stdout": str(out),
                "stderr": str(err),
                "cwd": str(cwd),
                "env": dict(env),
                "leave": leave,
            }
        )
        assert pid is not None
        out.touch()
        err.touch()
        return Running(self, pid, out, err)

    def stop(self) -> None:
        """End the server."""
        self._requests.close()
        self._answers.close()
        self._process.wait(timeout=200)


class Warm:
    """Starts scripts in the test's folder. Their runs are below `runs` in that folder.

    `leave`: after its last line, a script shuts stepprof down and exits at once. This saves the
    second that torch takes to end. Tests of the end of a process must not use it.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self.leave = False
        self._server = server
        self.folder = folder
        self._count = 0

    def start(self, script: str, *arguments: str, env: Mapping[str, str] | None = None) -> Running:
        """Start a script, by default with step 2 selected."""
        self._count += 1
        path = self.folder / f"script_{self._count}.py"
        path.write_text(PRELUDE + textwrap.dedent(script))
        return self._server.start(
            path,
            *arguments,
            cwd=self.folder,
            env={**os.environ, "STEPPROF_STEPS": "2", "STEPPROF_OUTPUT_DIR": "runs", **(env or {})},
            out=self.folder / f"{self._count}.out",
            err=self.folder / f"{self._count}.err",
            leave=self.leave,
        )

    def run(
        self, script: str, *arguments: str, timeout: float = 60, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run a script to its end."""
        return self.start(script, *arguments, env=env).wait(timeout)

    def run_twice(
        self, script: str, *arguments: str, env: Mapping[str, str] | None = None, together: bool = True
    ) -> Ran:
        """Run a script with stepprof switched off, and on. Both must have the same exit status and
        output.
        """
        settings = [{**(env or {}), "STEPPROF": "0"}, env]
        if together:
            both = [self.start(script, *arguments, env=each) for each in settings]
            off, on = (running.wait() for running in both)
        else:
            off, on = (self.run(script, *arguments, env=each) for each in settings)
        assert (on.returncode, on.stdout) == (off.returncode, off.stdout), f"{off.stderr}\n----\n{on.stderr}"
        return on

    @property
    def run_path(self) -> Path:
        """Return the only recorded run."""
        (path,) = list_runs(self.folder / "runs")
        return path

    def windows(self, step: int = 2) -> list[dict]:
        """Return the windows of a step in the manifest."""
        return read_step(self.run_path, step)["windows"]

    def window(self, step: int = 2) -> dict:
        """Return the only window of a step."""
        (window,) = self.windows(step)
        return window

    def spans(self) -> list[dict]:
        """Return the spans of the run, without headers."""
        files = sorted((self.run_path / "spans").iterdir())
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [line for line in lines if line["kind"] != "spans"]

    def is_readable(self, window: dict, step: int = 2) -> bool:
        """Return whether the only artifact of a window is complete."""
        (artifact,) = window["artifacts"]
        problem = check_artifact(
            self.run_path / f"step-{step:06d}" / artifact["path"], artifact["bytes"], artifact["kind"]
        ).problem
        assert problem is None, problem
        return True
