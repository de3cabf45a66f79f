"""An engine on an event loop of its own thread, a driver on stepprof's, and what is in the traces: the tests and their scripts share it."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_tiny import arguments

from stepprof.options import EngineOptions
from stepprof.remote.base import EngineDriver, EngineWindow, Stopped
from stepprof.remote.loop import remote_loop
from stepprof.window import Artifact, Window

_FORWARD = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_numbers = itertools.count()


def make_window(
    folder: Path, step: int = 2, replica: int = 0, *, workers: frozenset[int] | None = None, **options: Any
) -> EngineWindow:
    """Return the window of a step, with its folder made, as the session makes it."""
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
    """Run a driver's method where stepprof runs it."""
    return remote_loop().submit(work).result(timeout)


def record(driver: EngineDriver, window: EngineWindow, body: Callable[[], object]) -> Stopped:
    """One window: arm, start, the body, stop."""
    on_remote(driver.arm(window))
    on_remote(driver.start(window))
    body()
    stopped: Stopped = on_remote(driver.stop(window))
    return stopped


class Live:
    """An ``AsyncLLM`` on the event loop of a thread of its own, as a trainer that drives its engine has it."""

    def __init__(self, model: str, **more: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        self.engine = self.run(self._build(model, more))

    @staticmethod
    async def _build(model: str, more: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(model, **more)))

    def run(self, work: Awaitable[Any], timeout: float = 500) -> Any:
        """Await something on the engine's loop."""

        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(timeout)

    def generate(self, tokens: int, prompts: int = 1) -> None:
        """Generate so many tokens for so many prompts at once."""
        self.run(self.generating(tokens, prompts))

    async def generating(self, tokens: int, prompts: int = 1) -> None:
        """The same as a coroutine."""
        await asyncio.gather(*(self._one(tokens) for _ in range(prompts)))

    async def _one(self, tokens: int) -> None:
        from vllm import SamplingParams

        asked = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
        async for _ in self.engine.generate("abc", asked, f"request-{next(_numbers)}"):
            pass

    def processes(self) -> list[Any]:
        """The core processes of the engine."""
        return list(self.engine.engine_core.resources.engine_manager.processes)

    def close(self) -> None:
        """End it and its processes."""
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    async def _close(self) -> None:
        self.engine.shutdown()


@dataclass(frozen=True)
class Trace:
    """What is in an artifact."""

    stated: dict[str, Any]
    events: list[dict[str, Any]]
    base_ns: int

    @classmethod
    def read(cls, window: EngineWindow, artifact: Artifact) -> Trace:
        """Open it where the manifest would say it is."""
        path = window.folder / artifact.path
        assert path.stat().st_size == artifact.bytes
        with gzip.open(path) as file:
            content = json.load(file)
        assert next(iter(content)) == "stepprof"
        events = content["traceEvents"]
        assert artifact.events == len(events)
        return cls(content["stepprof"], events, content.get("baseTimeNanoseconds", 0))

    @property
    def forward(self) -> list[tuple[int, int]]:
        """The forward steps that had something to do: tokens of prompts, and of generation."""
        found = []
        for event in self.spans:
            match = _FORWARD.fullmatch(event["name"])
            assert match, event["name"]
            if int(match[2]) or int(match[4]):
                found.append((int(match[2]), int(match[4])))
        return found

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans of the forward steps, in order."""
        spans = [e for e in self.events if e["ph"] == "X" and e["name"].startswith("execute_")]
        return sorted(spans, key=lambda event: event["ts"])

    @property
    def within_ns(self) -> tuple[int, int]:
        """When the first forward step that had something to do began, and the last ended, since the Unix epoch."""
        busy = [span for span in self.spans if not span["name"].endswith("context_0(0)_generation_0(0)")]
        first, last = busy[0], busy[-1]
        return (
            int(first["ts"] * 1000) + self.base_ns,
            int((last["ts"] + last["dur"]) * 1000) + self.base_ns,
        )

    @property
    def pids(self) -> set[int]:
        """Which processes ran the ops."""
        return {event["pid"] for event in self.events if event.get("cat") == "cpu_op"}
