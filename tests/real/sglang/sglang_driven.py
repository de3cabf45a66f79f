"""What is in the traces of SGLang: the tests and the host of their engine share it."""

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
        """So many tokens."""
        asked = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        await self.engine.async_generate("abc", asked)


def forward_steps(tokens: int, prompts: int = 1) -> list[tuple[str, int]]:
    """The forward steps of so many tokens for so many prompts."""
    return [("EXTEND", prompts), *[("DECODE", prompts)] * (tokens - 1)]


class Trace(EngineTrace):
    """What is in an artifact of the run."""

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans of the forward steps, in order."""
        found = [
            event for event in self.events if event.get("ph") == "X" and event["name"].startswith("step[")
        ]
        return sorted(found, key=lambda event: float(event["ts"]))

    @property
    def forward(self) -> list[tuple[str, int]]:
        """The forward steps: which stage, and how many requests."""
        matches = [_FORWARD.match(event["name"]) for event in self.spans]
        return [(match[1], int(match[2])) for match in matches if match is not None]

    @property
    def within_ns(self) -> tuple[int, int]:
        """When the first forward step began and the last one ended, since the Unix epoch."""
        return self.since_epoch(self.spans[0], self.spans[-1])


def described(window: EngineWindow, stopped: Stopped) -> dict[str, Any]:
    """What a stop brought, as plain values."""
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
