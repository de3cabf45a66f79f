"""Provide the helpers of the tests of real engines: windows for a driver, sessions next to an
engine, and readers of the files.

This module is in the folder of all tests, not in that of the engines. From there, `import vllm`
would find the folder of vLLM's tests if no vLLM is installed.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

import stepprof
from stepprof.config.options.engine import EngineOptions
from stepprof.host.process_identity import writer_identity
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, EngineWindow, Stopped
from stepprof.remote.core.lease import Lease
from stepprof.remote.core.trace_times import by_calls
from stepprof.remote.loop import remote_loop
from stepprof.remote.ray.inside.entry import serve
from stepprof.remote.ray.inside.messages import Attachment
from stepprof.run.model import Window
from stepprof.run.schema import EngineEntry

T = TypeVar("T", bound="EngineTrace")

PATIENT = {"engine_start_timeout_seconds": 60, "engine_stop_timeout_seconds": 60}
"""Timeouts for an engine that shares two cores with all other processes."""

MATRIX = [
    # options of the engine, ranks, device
    (options, ranks, device)
    for device in ("cpu", "cuda", "npu")
    for options, ranks in (({}, "1"), ({"with_stack": True, "record_shapes": True}, "all"))
]


def name_of(value: object) -> str:
    """Return the name of a value of the matrix in the name of its test."""
    return ("stacks-and-shapes" if value else "nothing-extra") if isinstance(value, dict) else str(value)


def make_window(
    folder: Path, step: int = 2, replica: int = 0, *, workers: frozenset[int] | None = None, **options: Any
) -> EngineWindow:
    """Return the window of a step with its folder, as the session makes it."""
    trace_dir = options.pop("trace_dir", None)
    place = folder / f"step-{step:06d}"
    stem = f"rollout/replica-{replica}"
    (place / stem).mkdir(parents=True, exist_ok=True)
    return EngineWindow(
        window=Window(step, "rollout"),
        replica=replica,
        folder=place,
        stem=stem,
        options=EngineOptions(**options),
        metadata={"run_id": "test", "step": step, "role": "rollout", "replica": replica},
        workers=workers,
        trace_dir=trace_dir,
    )


def on_remote(work: Coroutine[Any, Any, Any], timeout: float = 100) -> Any:
    """Run a driver's method on the loop on which stepprof runs it."""
    return remote_loop().submit(work).result(timeout)


def record(driver: EngineDriver, window: EngineWindow, body: Callable[[], object]) -> Stopped:
    """Record one window: arm, start, the body, stop."""
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    body()
    stopped: Stopped = on_remote(driver.stop(window))
    return stopped


def clock_by_calls(driver: EngineDriver, window: EngineWindow, body: Callable[[], object]) -> Clock | None:
    """Record one window, and return the clock of the engine that its calls and traces show."""
    on_remote(driver.arm(window))
    sent = time.time_ns()
    on_remote(driver.start(window))
    answered = time.time_ns()
    body()
    ended = time.time_ns()
    stopped: Stopped = on_remote(driver.stop(window))
    entry = EngineEntry(start_unix_ns=answered, end_unix_ns=ended, start_seconds=(answered - sent) / 1e9)
    return by_calls(window, stopped, entry, "there", time.time_ns())


def begin(folder: Path, **config: Any) -> stepprof.Session:
    """Start a session in which the rollouts of steps 2 and 3 are recorded, unless the configuration
    differs.
    """
    rollout = {"ranks": "all", **config.pop("rollout", {})}
    fixed = {"steps": "2-3", "output_dir": str(folder), "backend": "null", "roles": {"rollout": rollout}}
    return stepprof.init({**fixed, **PATIENT, **config}, run_id="run")


def read_entries(folder: Path, step: int = 2) -> list[dict[str, Any]]:
    """Return the entries of a step's engines in the manifest of the run."""
    path = folder / "run" / f"step-{step:06d}" / "manifest" / "rollout-engines-rank-0.json"
    entries: list[dict[str, Any]] = json.loads(path.read_text())["engines"]
    return sorted(entries, key=lambda entry: entry["replica"])


def wait_for_entry(folder: Path, status: str, step: int = 2) -> dict[str, Any]:
    """Return the entry of a step's only engine once it has this status. Entries are written a
    moment after they change.
    """
    deadline = time.monotonic() + 60
    while True:
        (entry,) = read_entries(folder, step)
        if entry["status"] == status:
            return entry
        assert time.monotonic() < deadline, entry
        time.sleep(0.02)


@contextmanager
def running(
    script: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Yield a job that has printed its first line, and kill it at the end of the block. Its log is
    the file `log` in its folder.
    """
    given = {**os.environ, **(env or {})}
    with (
        (cwd / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            cwd=cwd,
            env={
                **given,
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), given.get("PYTHONPATH", "")]),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as job,
    ):
        try:
            assert job.stdout is not None
            assert job.stdout.readline(), (cwd / "log").read_text()
            yield job
        finally:
            job.kill()


LEFT_OPEN = """
import json, sys
from pathlib import Path
import stepprof
from driven import begin

url, options = sys.argv[1], json.loads(sys.argv[2])
begin(Path.cwd(), steps="2", engine_stop_timeout_seconds=2)
stepprof.attach(url, role="rollout", **options)
stepprof.profile_step(2, role="rollout").start()
print("recording", flush=True)
sys.stdin.readline()
"""
"""A job whose script ends inside its window."""


def end_beside_a_stopped_engine(
    url: str,
    folder: Path,
    pid: int,
    generate: Callable[[], object],
    *,
    env: Mapping[str, str] | None = None,
    **options: str,
) -> None:
    """Let a job end while a process of its engine is stopped. The job waits for the stop timeout
    and logs that in one line, and its entry is lost.

    Args:
        url: the URL of the engine's server.
        folder: the folder in which the job runs.
        pid: the process that is stopped; it continues afterwards.
        generate: works in the window.
        env: variables of the job.
        options: options of `attach`.
    """
    with running(LEFT_OPEN, url, json.dumps(options), cwd=folder, env=env) as job:
        generate()
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            job.communicate("\n", timeout=100)
            assert time.monotonic() - began < 30  # exports would have 120 s
        finally:
            os.kill(pid, signal.SIGCONT)
    assert job.returncode == 0
    assert (folder / "log").read_text().count("the end of the run waits for engines") == 1
    (entry,) = read_entries(folder)
    assert (entry["status"], entry["artifacts"], entry["stop_seconds"]) == ("lost", [], None)


@dataclass(frozen=True)
class EngineTrace:
    """The content of an engine's trace. Each kind of engine defines which events are its forward
    steps.
    """

    stated: dict[str, Any]
    events: list[dict[str, Any]]
    base_ns: int

    @classmethod
    def read(cls: type[T], path: Path) -> T:
        """Read a trace."""
        with gzip.open(path) as file:
            content = json.load(file)
        assert next(iter(content)) == "stepprof"
        return cls(content["stepprof"], content["traceEvents"], content.get("baseTimeNanoseconds", 0))

    @classmethod
    def left(cls: type[T], path: Path) -> T:
        """Read a trace as the engine wrote it."""
        with gzip.open(path) as file:
            content = json.load(file)
        return cls({}, content["traceEvents"], content.get("baseTimeNanoseconds", 0))

    @classmethod
    def named(cls: type[T], folder: Path, artifact: Mapping[str, Any], step: int = 2) -> T:
        """Read a trace that the manifest of the run names, and check that its size and number of
        events agree.
        """
        path = folder / "run" / f"step-{step:06d}" / artifact["path"]
        trace = cls.read(path)
        assert (path.stat().st_size, len(trace.events)) == (artifact["bytes"], artifact["events"])
        return trace

    def since_epoch(self, first: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[int, int]:
        """Return when the first of two events began and the last one ended, in ns since the Unix
        epoch.
        """
        return (
            int(first["ts"] * 1000) + self.base_ns,
            int((last["ts"] + last["dur"]) * 1000) + self.base_ns,
        )

    @property
    def has_stacks(self) -> bool:
        """Return whether Python functions were recorded."""
        return any(event.get("cat") == "python_function" for event in self.events)

    @property
    def has_shapes(self) -> bool:
        """Return whether ops have the shapes of their inputs."""
        return any("Input Dims" in event.get("args", {}) for event in self.events)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Start processes in this block without coverage, which would add a half to the time of their
    imports. They run no line of stepprof, or measure it.
    """
    kept = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith("COVERAGE_PROCESS")}
    try:
        yield
    finally:
        os.environ.update(kept)


class Inside:
    """The entry of an actor, called as from another process. The job's driver is a separate process
    that can be killed.

    Args:
        engine: the engine that the actor holds.
        folder: the folder of its run.
    """

    def __init__(self, engine: Any, folder: Path) -> None:
        self._actor = SimpleNamespace(engine=engine)
        self._folder = folder
        (folder / "run").mkdir(parents=True, exist_ok=True)
        (folder / "run" / ".seen").touch()
        self.driver = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def window(self, step: int) -> EngineWindow:
        """Return the window of a step of the driver."""
        return replace(make_window(self._folder / "run", step), owner=writer_identity(self.driver.pid))

    def arm(self, window: EngineWindow) -> Any:
        """Find and arm the engine on behalf of the driver."""
        attachment = Attachment(
            kind="engine", find="engine", rank=None, position=0, world_size=None, config={}, run_id="run",
            output_dir=str(self._folder), marker=".seen", lease=Lease(writer_identity(self.driver.pid)),
        )  # fmt: skip
        return self.ask("arm", attachment, window)

    def ask(self, verb: str, *arguments: object) -> Any:
        """Return the answer to a call. Raise EngineFailure if the call fails."""
        answer = serve(self._actor, f"driver {self.driver.pid}", verb, *arguments)
        while answer.ticket is not None:
            time.sleep(0.01)
            answer = serve(self._actor, "", "answer", answer.ticket)
        if answer.failure is not None:
            raise answer.failure
        return answer.value

    def kill(self) -> None:
        """Kill the driver."""
        self.driver.kill()
        self.driver.wait()
        assert self.driver.stdin is not None
        self.driver.stdin.close()


def outlive_a_driver(engine: Any, folder: Path, generate: Callable[[int], object]) -> Stopped:
    """Record an engine in an actor for a job whose driver is killed inside its window. A second job
    is refused before, and records afterwards.

    Args:
        engine: the engine.
        folder: the folder of the runs of both jobs.
        generate: generates a number of tokens.

    Returns:
        The result of the second job's window.
    """
    first = Inside(engine, folder / "first")
    second = Inside(engine, folder / "second")
    try:
        window = first.window(2)
        first.arm(window)
        first.ask("start", window)
        generate(3)
        other = second.window(2)
        second.arm(other)
        with pytest.raises(EngineFailure, match=rf"\(process {first.driver.pid} on ") as caught:
            second.ask("start", other)
        assert caught.value.health == "busy"
        first.kill()
        for _ in range(10):  # past the next check of the driver
            generate(1)
            time.sleep(0.3)
        second.arm(other)
        second.ask("start", other)
        generate(4)
        stopped: Stopped = second.ask("stop", other).stopped
        return stopped
    finally:
        first.driver.kill()
        second.kill()
