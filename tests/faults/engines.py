"""Simulated engines, which keep the truth about what was recorded, and drivers for them in the form
of a plug-in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from faults.plan import EnginePlan, Fault
from stepprof.remote.base import Clock, EngineDriver, EngineFailure, Stopped
from stepprof.remote.loop import on_loop
from stepprof.run.model import Artifact

__all__ = ["LATE_SECONDS", "SLOW_SECONDS", "Call", "Capture", "FaultKind", "SimEngine", "install"]

METADATA = "Metadata-Version: 2.1\nName: stepprof-faults\nVersion: 1.0\n"
ENTRY_POINTS = "[stepprof.engines]\nfaults = faults.engines:FaultKind\n"
SLOW_SECONDS, LATE_SECONDS = 0.005, 0.06
THIEF = "another driver"


def install(folder: Path) -> None:
    """Write the metadata of a package that provides the engines."""
    info = folder / "stepprof_faults-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


@dataclass(eq=False)
class Call:
    """One call of a driver: when it was sent and answered (``perf_counter_ns``), and for which window."""

    verb: str
    window: object
    sent: int
    answered: int | None = None
    failed: str | None = None
    capture: Capture | None = None


@dataclass(eq=False)
class Capture:
    """The actual recording by an engine: its times, its window, and the cause of its end."""

    owner: object
    began: int
    began_unix: int
    ended: int | None = None
    ended_unix: int | None = None
    cause: str | None = None

    def end(self, cause: str) -> None:
        self.ended, self.ended_unix, self.cause = time.perf_counter_ns(), time.time_ns(), cause


@dataclass(eq=False)
class SimEngine:
    """A simulated engine. It has a lock, because drivers, threads and other drivers call it concurrently."""

    plan: EnginePlan
    name: str
    home: asyncio.AbstractEventLoop | None = None
    calls: list[Call] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    written: list[tuple[Path, Call]] = field(default_factory=list)
    """The engine's files, and the calls whose answers report them."""
    alive: bool = True

    def __post_init__(self) -> None:
        self.released = threading.Event()
        self._left = {verb: list(faults) for verb, faults in self.plan.faults}
        self._lock = threading.RLock()
        self.running: Capture | None = None
        self.key = f"object:{id(self)}"

    @property
    def is_armed(self) -> bool:
        """Return whether the engine's last window has ended and the engine is armed for another one."""
        calls = [call for call in list(self.calls) if call.verb in ("arm", "start", "stop")]
        return calls[-1:] != [] and calls[-1].verb == "arm" and calls[-1].answered is not None

    def fault(self, verb: str) -> Fault:
        with self._lock:
            left = self._left.get(verb)
            return left.pop(0) if left else Fault()

    def begin(self, owner: object) -> Capture:
        with self._lock:
            if not self.alive:
                raise EngineFailure(f"{self.name} is not there", "dead")
            if self.running is not None:
                raise EngineFailure(f"{self.name} is recorded by {self.running.owner}", "busy")
            self.running = Capture(owner, time.perf_counter_ns(), time.time_ns())
            self.captures.append(self.running)
            return self.running

    def end(self, owner: object, cause: str) -> None:
        with self._lock:
            if not self.alive:
                raise EngineFailure(f"{self.name} is not there", "dead")
            if self.running is None:
                raise EngineFailure(f"{self.name} records nothing", "unknown")
            if self.running.owner != owner:
                raise EngineFailure(f"{self.name} is recorded by {self.running.owner}", "busy")
            self.running.end(cause)
            self.running = None

    def die(self) -> None:
        with self._lock:
            self.alive = False
            self._lose("died")

    def restart(self) -> None:
        with self._lock:
            self._lose("died")
            self.alive = True

    def steal(self) -> None:
        with self._lock:
            if self.alive:
                self._lose("stolen")
                self.running = Capture(THIEF, time.perf_counter_ns(), time.time_ns())

    def give_back(self) -> None:
        with self._lock:
            if self.running is not None and self.running.owner == THIEF:
                self.running = None

    def _lose(self, cause: str) -> None:
        if self.running is not None:
            self.running.end(cause)
            self.running = None


class FaultDriver(EngineDriver):
    """Speaks to a `SimEngine`, and notes where stepprof violates the contract of a driver."""

    def __init__(self, engine: SimEngine) -> None:
        plan = engine.plan
        self.engine = engine
        self.kind, self.name, self.key = plan.kind, engine.name, engine.key
        self.host: str | None = "here"
        self.loop = engine.home if plan.home else None
        self.inside = plan.inside
        self._busy: str | None = None
        self._owner: object = None
        self._left: object = None
        """The owner of a capture whose stop failed. `close` ends this capture, as in the drivers of
        real engines.
        """
        self._armed = False

    async def _call(self, verb, window=None, act=lambda call: None, *, alone=True):
        engine = self.engine
        call = Call(verb, None if window is None else window.window.version, time.perf_counter_ns())
        engine.calls.append(call)
        if alone and self._busy:
            engine.violations.append(f"{verb} during {self._busy}")
        if threading.current_thread().name != "stepprof-remote":
            engine.violations.append(f"{verb} on {threading.current_thread().name}")
        if alone:
            self._busy = verb
        try:
            result = await self._answer(call, engine.fault(verb), act)
        except asyncio.CancelledError:
            if call.failed is None and verb != "wait":  # a wait next to the loop ends with the run
                engine.violations.append(f"{verb} was cancelled")
            raise
        except BaseException as error:
            call.failed = call.failed or repr(error)
            raise
        finally:
            call.answered = time.perf_counter_ns()
            if alone:
                self._busy = None
        return result

    async def _answer(self, call, fault, act):
        if self.loop is not None:  # switch to the event loop on which the engine lives
            await on_loop(self.loop, _nothing)
        result = act(call) if fault.early else None
        if fault.what in ("slow", "late"):
            await asyncio.sleep(SLOW_SECONDS if fault.what == "slow" else LATE_SECONDS)
        elif fault.what == "hang":
            while not self.engine.released.is_set():
                await asyncio.sleep(0.003)
        elif fault.what == "die":
            self.engine.die()
            raise EngineFailure(f"{self.name} died", "dead")
        elif fault.what == "raise":
            error = made(fault.error, call)
            call.failed = repr(error)
            raise error
        elif fault.what == "twice":
            await _answered_twice()
        return result if fault.early else act(call)

    async def arm(self, window):
        if self.kind == "simulated" and (not window.output.is_dir() or list(window.output.iterdir())):
            self.engine.violations.append(f"{window.stem} is no empty folder")
        await self._call("arm", window, lambda call: self._look())
        self._armed = True

    def _look(self):
        running = self.engine.running
        if not self.engine.alive:
            raise EngineFailure(f"{self.name} is not there", "unreachable")
        if running is not None and running.owner == THIEF:
            raise EngineFailure(f"{self.name} is recorded by {THIEF}", "busy")
        if running is not None:  # left by a failed stop; its driver recognises it by its name
            with contextlib.suppress(EngineFailure):
                self.engine.end(running.owner, "left over")

    async def start(self, window):
        if not self._armed:
            self.engine.violations.append("start of what is not armed")
        if self._owner is not None:
            self.engine.violations.append("start while it records")
        self._armed = False
        owner = self._owner = (id(self), window.window.version)

        def act(call):
            call.capture = self.engine.begin(owner)

        try:
            await self._call("start", window, act)
        except EngineFailure as error:
            if not error.owes_stop:
                self._owner = None
            raise

    async def stop(self, window):
        owner, self._owner = self._owner, None
        if owner is None:
            self.engine.violations.append("stop of what does not record")
        try:
            return await self._call("stop", window, lambda call: self._stop(call, owner, window))
        except BaseException:
            self._left = owner
            raise

    def _stop(self, call, owner, window):
        self.engine.end(owner, "stop")
        what = self.engine.plan.result
        if self.kind != "simulated" or what == "nothing":
            return Stopped()
        if what == "later":
            return Stopped(later=SimLater(self, window))
        partial = "half of it" if what == "partial" else None
        return Stopped([self.write(call, window)], "engine" if what == "capped" else None, partial)

    def write(self, call, window):
        path = window.output / "rank-0.trace.json"
        self.engine.written.append((path, call))
        path.write_text(json.dumps({"stepprof": dict(window.metadata), "traceEvents": []}))
        return Artifact(f"{window.stem}/{path.name}", "trace", path.stat().st_size, 0)

    async def abort(self):
        owner, self._owner = self._owner, None

        def act(call):
            with contextlib.suppress(EngineFailure):
                self.engine.end(owner, "abort")

        await self._call("abort", None, act)

    async def clock(self):
        return await self._call("clock", None, lambda call: Clock("here", 0, 0, "same-host"))

    async def close(self, timeout, answer_seconds):
        closing = asyncio.ensure_future(self._call("close", None, self._end_left, alone=False))
        if self.kind == "rank":  # as in a real driver: the export of a rank may take longer than an answer
            await asyncio.wait([closing], timeout=answer_seconds)
            closing.add_done_callback(lambda done: done.cancelled() or done.exception())
        else:
            await closing

    def _end_left(self, call):
        owner, self._left = self._left, None
        with contextlib.suppress(EngineFailure):  # another call may have ended it
            self.engine.end(owner, "left over")


class Router(EngineDriver):
    """Represents the driver of an engine, as a router's driver represents those of its workers."""

    kind = "router"

    def __init__(self, engine):
        self._inner = FaultDriver(engine)
        self.name, self.key = f"router of {engine.name}", f"router:{engine.key}"

    async def arm(self, window):
        raise EngineFailure(f"{self.name} has not said whom it stands for", "unreachable")

    async def start(self, window):
        self._inner.engine.violations.append("start of a router")

    stop = start

    async def abort(self):
        self._inner.engine.violations.append("abort of a router")

    async def expand(self):
        return await self._inner._call("expand", None, lambda call: [self._inner], alone=False) or []


class SpansDriver(FaultDriver):
    """A session in another process that wants to know which step runs."""

    listens = True

    async def announce(self, number, windows):
        await self._call("announce", alone=False)


class SimLater:
    """A file that arrives some time after the answer to the stop."""

    def __init__(self, driver, window):
        self._driver, self._window = driver, window
        self._until = None

    async def wait(self):
        driver, window = self._driver, self._window
        return await driver._call(
            "wait", window, lambda call: Stopped([driver.write(call, window)]), alone=False
        )

    def hurry(self, until):
        self._until = until


class FaultKind:
    """The engine kind that the entry point names."""

    def recognises(self, target):
        return isinstance(target, SimEngine)

    def connect(self, target, **options):
        if target.plan.how == "router":
            return Router(target)
        return (SpansDriver if target.plan.kind == "spans" else FaultDriver)(target)


def made(error, call):
    """Return an exception by its name. If a start took effect, stepprof must send a stop, provided
    the driver reports the start.
    """
    begun = call.capture is not None
    healths = ("unknown", "unreachable", "unconfigured", "busy", "dead")
    if error in healths or error == "owes stop":
        health = "unreachable" if error == "owes stop" else error
        owes = call.verb == "start" and (begun or error == "owes stop")
        return EngineFailure(f"{call.verb} failed: {error}", health, owes_stop=owes)
    return {
        "value": ValueError,
        "timeout": TimeoutError,
        "cancelled": asyncio.CancelledError,
        "exit": SystemExit,
    }[error](f"{call.verb} raised")


async def _nothing():
    return None


async def _answered_twice():
    """Simulate a transport that delivers an answer twice."""
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def deliver():
        with contextlib.suppress(asyncio.InvalidStateError):
            answer.set_result(None)

    loop.call_soon_threadsafe(deliver)
    loop.call_soon_threadsafe(deliver)
    await answer
