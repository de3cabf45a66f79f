"""A driver on stepprof's own loop, windows for it, and what is in the traces: the tests and the host of their engine share it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.options import EngineOptions
from stepprof.remote.base import EngineDriver, EngineWindow, Stopped
from stepprof.remote.loop import remote_loop
from stepprof.window import Window

_FORWARD = re.compile(r"step\[(EXTEND|DECODE) bs=(\d+)(?: toks=(\d+))?")


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


@dataclass(frozen=True)
class Trace:
    """What is in an artifact of the run."""

    stated: dict[str, Any]
    events: list[dict[str, Any]]
    base_ns: int

    @classmethod
    def read(cls, path: Path) -> Trace:
        """Open it."""
        with gzip.open(path) as file:
            content = json.load(file)
        assert next(iter(content)) == "stepprof"
        return cls(content["stepprof"], content["traceEvents"], content.get("baseTimeNanoseconds", 0))

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
        first, last = self.spans[0], self.spans[-1]
        return (
            int(first["ts"] * 1000) + self.base_ns,
            int((last["ts"] + last["dur"]) * 1000) + self.base_ns,
        )

    @property
    def has_stacks(self) -> bool:
        """Whether Python functions were recorded."""
        return any(event.get("cat") == "python_function" for event in self.events)

    @property
    def has_shapes(self) -> bool:
        """Whether ops have the shapes of their inputs."""
        return any("Input Dims" in event.get("args", {}) for event in self.events)


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
