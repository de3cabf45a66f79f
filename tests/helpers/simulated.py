"""Provide an engine, as another package would, that a test makes slow, failing, hung or dead. It
checks the promises of the engine contract.

It writes its own trace into the given folder. The tests of real engines run in separate sessions.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepprof.remote.base import Clock, EngineDriver, EngineFailure, Stopped
from stepprof.run.model import Artifact

METADATA = "Metadata-Version: 2.1\nName: stepprof-simulated\nVersion: 1.0\n"
ENTRY_POINTS = "[stepprof.engines]\nsimulated = simulated:SimulatedKind\n"
BASE = 1_700_000_000_000_000_000
EVENTS = [{"name": "step", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]


@dataclass(eq=False)
class Simulated:
    """An engine. ``delays`` are seconds per verb. ``hold`` delays the answer to a verb until its
    event is set. ``failing`` has the error that a verb raises. ``ahead`` are the seconds of its clock
    before this one, which only its traces show.
    """

    name: str = "simulated"
    delays: dict = field(default_factory=dict)
    hold: dict = field(default_factory=dict)
    failing: dict = field(default_factory=dict)
    loop: asyncio.AbstractEventLoop | None = None
    inside: bool = False
    kind: str = "simulated"
    key: str | None = None
    workers: int | None = None
    writes: bool = True
    later: object = None
    ahead: float | None = None
    calls: list = field(default_factory=list)
    violations: list = field(default_factory=list)
    windows: list = field(default_factory=list)

    def asked(self, verb):
        """Return how often a verb was called."""
        return self.calls.count(verb)


class Driver(EngineDriver):
    """The driver of a `Simulated`."""

    def __init__(self, engine, name=None):
        self.engine = engine
        self.kind = engine.kind
        self.name = name or engine.name
        self.key = engine.key or f"object:{id(engine)}"
        self.host = "here"
        self.loop = engine.loop
        self.inside = engine.inside
        if engine.workers:
            self.workers = engine.workers
        self._busy = None
        self._running = False

    async def _do(self, verb, window=None):
        engine = self.engine
        engine.calls.append(verb)
        if self._busy:
            engine.violations.append(f"{verb} during {self._busy}")
        if threading.current_thread().name != "stepprof-remote":
            engine.violations.append(f"{verb} on {threading.current_thread().name}")
        self._busy = verb
        try:
            if verb in engine.hold:
                while not engine.hold[verb].is_set():
                    await asyncio.sleep(0.005)
            await asyncio.sleep(engine.delays.get(verb, 0))
            failure = engine.failing.get(verb)
            if failure is not None:
                raise failure
        except asyncio.CancelledError:
            engine.violations.append(f"{verb} cancelled")
            raise
        finally:
            self._busy = None

    async def arm(self, window):
        if not window.output.is_dir() or list(window.output.iterdir()):
            self.engine.violations.append(f"{window.output} is no empty folder")
        await self._do("arm")

    async def start(self, window):
        if self._running:
            self.engine.violations.append("start while running")
        await self._do("start")
        self._running = True
        self._began_ns = time.time_ns()
        self.engine.windows.append(window)

    async def stop(self, window):
        if not self._running:
            self.engine.violations.append("stop while not running")
        ended_ns = time.time_ns()
        try:
            await self._do("stop")
        finally:
            self._running = False
        if self.engine.later is not None:
            return Stopped(later=self.engine.later)
        if not self.engine.writes:
            return Stopped()
        path = window.output / "rank-0.trace.json"
        path.write_text(
            json.dumps(
                {"stepprof": dict(window.metadata), "baseTimeNanoseconds": BASE, "traceEvents": EVENTS}
            )
        )
        size = path.stat().st_size
        artifact = Artifact(f"{window.stem}/{path.name}", "trace", size, len(EVENTS))
        if self.engine.ahead is not None:
            began, ended = (int(at + self.engine.ahead * 1e9) for at in (self._began_ns, ended_ns))
            artifact = replace(artifact, began_ns=began, ended_ns=ended)
        return Stopped([artifact])

    async def abort(self):
        await self._do("abort")
        self._running = False

    async def clock(self):
        failure = self.engine.failing.get("clock")
        if failure is not None:
            raise failure
        if self.engine.ahead is not None:
            return None
        return Clock("here", 0, 0, "same-host")


class Listener(Simulated):
    """A session in another process that is informed only of the current step."""


class ListeningDriver(Driver):
    listens = True

    async def announce(self, number, windows):
        self.engine.calls.append(tuple(windows))


class SimulatedKind:
    """The kind of engine that the entry point names."""

    def recognises(self, target):
        return isinstance(target, Simulated)

    def connect(self, target, **options):
        driver = ListeningDriver if isinstance(target, Listener) else Driver
        return driver(target, options.get("name"))


def install(folder: Path) -> None:
    """Write the metadata of a package that provides the engine."""
    info = folder / "stepprof_simulated-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes a simulated engine. At the end of the test, no engine may have
    seen a violation of its contract.
    """
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.syspath_prepend(folder)
    made = []

    def make(cls=Simulated, **settings):
        made.append(cls(**settings))
        return made[-1]

    yield make
    for each in made:
        for event in each.hold.values():
            event.set()
    assert [each.violations for each in made if each.violations] == []


def dead(message="it has died"):
    return EngineFailure(message, "dead")


def read_entries(session, step=2) -> list[SimpleNamespace]:
    """Return the entries of engines in the manifests of a step, by replica."""
    found = []
    for file in sorted(session.path.glob(f"step-{step:06d}/manifest/*-engines-*.json")):
        found += json.loads(file.read_text())["engines"]
    return [
        SimpleNamespace(**entry)
        for entry in sorted(found, key=lambda entry: (entry["occurrence"], entry["replica"] or 0))
    ]
