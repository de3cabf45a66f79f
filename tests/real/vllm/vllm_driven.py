"""Run an engine on an event loop in its own thread, and read its traces. The tests and their
scripts share this module.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Awaitable
from typing import Any

from driven import EngineTrace, unmeasured
from vllm_tiny import arguments

from stepprof.remote.base import EngineWindow
from stepprof.run.model import Artifact

_FORWARD = re.compile(r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
_numbers = itertools.count()


async def answer(engine: Any, tokens: int) -> None:
    """Generate this number of tokens with an ``AsyncLLM``."""
    from vllm import SamplingParams

    asked = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0)
    async for _ in engine.generate("abc", asked, f"request-{next(_numbers)}"):
        pass


class Holder:
    """An actor that holds an engine.

    Args:
        model: the model's path.
        traces: the folder in which the engine writes.
    """

    def __init__(self, model: str, traces: str) -> None:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from stepprof.remote.vllm import engine_args

        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(model, **engine_args(traces))))

    async def generate(self, tokens: int) -> None:
        """Generate this number of tokens."""
        await answer(self.engine, tokens)


class Live:
    """An ``AsyncLLM`` on an event loop in its own thread, as a trainer that drives its engine has it."""

    def __init__(self, model: str, **more: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)
        self._thread.start()
        with unmeasured():
            self.engine = self.run(self._build(model, more))

    @staticmethod
    async def _build(model: str, more: dict[str, Any]) -> Any:
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(model, **more)))

    def run(self, work: Awaitable[Any], timeout: float = 500) -> Any:
        """Await a coroutine on the engine's loop."""

        async def awaited() -> Any:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(timeout)

    def generate(self, tokens: int, prompts: int = 1) -> None:
        """Generate this number of tokens for each of several concurrent prompts."""
        self.run(self.generating(tokens, prompts))

    async def generating(self, tokens: int, prompts: int = 1) -> None:
        """Generate in a coroutine."""
        await asyncio.gather(*(self._one(tokens) for _ in range(prompts)))

    async def _one(self, tokens: int) -> None:
        await answer(self.engine, tokens)

    def processes(self) -> list[Any]:
        """Return the core processes of the engine."""
        return list(self.engine.engine_core.resources.engine_manager.processes)

    def close(self) -> None:
        """End the engine and its processes."""
        self.run(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    async def _close(self) -> None:
        self.engine.shutdown()


class Trace(EngineTrace):
    """The content of an artifact."""

    @classmethod
    def of(cls, window: EngineWindow, artifact: Artifact) -> Trace:
        """Open the trace at the path of its artifact, and check that size and events agree."""
        path = window.folder / artifact.path
        trace = cls.read(path)
        assert (path.stat().st_size, len(trace.events)) == (artifact.bytes, artifact.events)
        return trace

    @property
    def forward(self) -> list[tuple[int, int]]:
        """Return the forward steps with requests: the tokens of prompts, and of generation."""
        found = []
        for event in self.spans:
            match = _FORWARD.fullmatch(event["name"])
            assert match, event["name"]
            if int(match[2]) or int(match[4]):
                found.append((int(match[2]), int(match[4])))
        return found

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Return the spans of the forward steps in order."""
        spans = [e for e in self.events if e["ph"] == "X" and e["name"].startswith("execute_")]
        return sorted(spans, key=lambda event: event["ts"])

    @property
    def within_ns(self) -> tuple[int, int]:
        """Return when the first forward step with requests began and the last one ended, since the
        Unix epoch.
        """
        busy = [span for span in self.spans if not span["name"].endswith("context_0(0)_generation_0(0)")]
        return self.since_epoch(busy[0], busy[-1])

    @property
    def pids(self) -> set[int]:
        """Return the ids of the processes that ran the ops."""
        return {event["pid"] for event in self.events if event.get("cat") == "cpu_op"}
