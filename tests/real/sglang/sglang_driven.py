"""Read the traces of SGLang, for the tests and for the host of their engine."""

from __future__ import annotations

import re
from typing import Any

import sglang_tiny
from driven import EngineTrace

from stepprof.remote.base import EngineWindow, Stopped

_FORWARD = re.compile(r"step\[(EXTEND|DECODE) bs=(\d+)(?: toks=(\d+))?")


class Holder:
    """An actor that holds an engine.

    Args:
        model: the model's path.
    """

    def __init__(self, model: str) -> None:
        import sglang

        self.engine = sglang.Engine(**{**sglang_tiny.ENGINE, "sleep_on_idle": True, "model_path": model})

    async def generate(self, tokens: int) -> None:
        """Generate this number of tokens."""
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        await self.engine.async_generate("abc", asked)


def forward_steps(tokens: int, prompts: int = 1) -> list[tuple[str, int]]:
    """Return the forward steps that generate this number of tokens for each of the prompts."""
    return [("EXTEND", prompts), *[("DECODE", prompts)] * (tokens - 1)]


class Trace(EngineTrace):
    """The content of an artifact of the run."""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Return the spans of the forward steps in order."""
        found = [
            event for event in self.events if event.get("ph") == "X" and event["name"].startswith("step[")
        ]
        return sorted(found, key=lambda event: float(event["ts"]))

    @property
    def forward(self) -> list[tuple[str, int]]:
        """Return the forward steps as (stage, number of requests)."""
        matches = [_FORWARD.match(event["name"]) for event in self.spans]
        return [(match[1], int(match[2])) for match in matches if match is not None]

    @property
    def within_ns(self) -> tuple[int, int]:
        """Return when the first forward step began and the last one ended, since the Unix epoch."""
        return self.since_epoch(self.spans[0], self.spans[-1])


def described(window: EngineWindow, stopped: Stopped) -> dict[str, Any]:
    """Return the results of a stop as plain values."""
    traces = {}
    for artifact in stopped.artifacts:
        path = window.folder / artifact.path
        trace = Trace.read(path)
        assert path.stat().st_size == artifact.bytes
        assert artifact.events == len(trace.events)
        traces[artifact.path] = {
            "forward": trace.forward,
            "stated": trace.stated,
            "stacks": trace.has_stacks,
            "shapes": trace.has_shapes,
            "within_ns": trace.within_ns if trace.spans else None,
        }
    return {
        "traces": traces,
        "capped_by": stopped.capped_by,
        "partial": stopped.partial,
        "left": sorted(path.name for path in window.output.iterdir()),
    }
