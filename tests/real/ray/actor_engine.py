"""Define a kind of engine that an entry point registers. It is small enough for a Ray actor, and
writes a trace. It refuses the same calls as a real engine: a start that was not armed, a second
start, a stop without a start.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

from stepprof.remote.artifacts import adopt
from stepprof.remote.base import EngineDriver, EngineFailure, Stopped
from stepprof.remote.loop import in_thread


class SimulatedEngine:
    """An engine that counts forward steps and records them between start and stop."""

    def __init__(self, *, slow=0.0, hang=False, large=0, inside=False):
        self.recording = None
        self.slow = slow
        self.hang = hang
        self.large = large
        self.inside = inside
        self.starts = 0
        self.aborts = 0

    def forward(self, label):
        began = time.time_ns()
        time.sleep(0.001)
        if self.recording is not None:
            self.recording.append(
                {
                    "ph": "X",
                    "cat": "cpu_op",
                    "name": f"forward {label}",
                    "pid": 1,
                    "tid": 1,
                    "ts": began / 1000,
                    "dur": 1000,
                }
            )


class Server:
    """A plain actor that holds an engine. It runs one call at a time, on the main thread."""

    def __init__(self, **options):
        self.engine = SimulatedEngine(**options)

    def generate(self, label, steps=2):
        for _ in range(steps):
            self.engine.forward(label)
        return os.getpid()

    def sleep(self, seconds):
        time.sleep(seconds)
        return time.time()

    def fail(self):
        raise ZeroDivisionError("no batch")

    def count(self):
        return self.engine.starts, self.engine.aborts, self.engine.recording is not None


class AsyncServer:
    """An actor whose methods run on an event loop."""

    def __init__(self, **options):
        self.engine = SimulatedEngine(**options)

    async def generate(self, label, steps=2):
        for _ in range(steps):
            self.engine.forward(label)
            await asyncio.sleep(0)
        return os.getpid()

    async def count(self):
        return self.engine.starts, self.engine.aborts, self.engine.recording is not None


class SimulatedKind:
    """The kind that recognises the engine by the name of its type, as the kinds of real engines do."""

    def recognises(self, target):
        return type(target).__name__ == "SimulatedEngine"

    def connect(self, target, **options):
        from stepprof.remote.attach import check_options

        check_options(options, ("flavour", "kind", "name"), "a simulated engine")
        return SimulatedDriver(target)


class SimulatedDriver(EngineDriver):
    kind = "simulated"
    name = "simulated"

    def __init__(self, engine):
        self.engine = engine
        self.key = f"object:{id(engine)}"
        self.inside = engine.inside

    async def arm(self, window):
        if not window.output.is_dir():
            raise EngineFailure(f"{window.output} is not there", "unconfigured")

    async def start(self, window):
        self.engine.starts += 1
        if self.engine.hang:
            await asyncio.sleep(3600)
        await asyncio.sleep(self.engine.slow)
        if self.engine.recording is not None:
            raise EngineFailure("a profiler runs already", "busy")
        self.engine.recording = []

    async def stop(self, window):
        events, self.engine.recording = self.engine.recording, None
        if events is None:
            raise EngineFailure("nothing runs", "unknown")
        await asyncio.sleep(self.engine.slow)
        raw = window.output / "raw.json"
        padding = [
            {
                "ph": "i",
                "cat": "pad",
                "name": f"{n * 2654435761 % 2**32:08x}",
                "pid": 1,
                "tid": 1,
                "ts": n,
                "s": "t",
            }
            for n in range(self.engine.large)
        ]
        raw.write_text(json.dumps({"traceEvents": [*events, *padding]}))
        return Stopped((await in_thread(lambda: adopt(raw, window, "rank-0", rank=0)),))

    async def abort(self):
        self.engine.aborts += 1
        self.engine.recording = None
