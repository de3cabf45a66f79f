"""Estimate the cost of an engine's stop for other limits of forward steps.

An engine answers no request while it writes its trace, and the trace grows with each forward step.
The rate is the time for the recorded steps divided by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepprof.analysis.report.processes import Process, engine_of
from stepprof.analysis.report.schema import StopCost
from stepprof.run.summary import SESSIONS, engine_label

BOUNDS = (32, 128, 512)
"""Values of `max_iterations` to estimate for."""


def recorded_steps(processes: Iterable[Process]) -> dict[str, int]:
    """Return the number of forward steps in the capture of each engine, including those outside of
    its window.

    The worker with the most steps counts.
    """
    steps: dict[str, int] = {}
    for process in processes:
        if process.kind == "engine":
            label = engine_of(process.origin)
            steps[label] = max([steps.get(label, 0), *(digest.recorded_steps for digest in process.digests)])
    return steps


def stop_costs(processes: Iterable[Process], engines: Sequence[Mapping[str, Any]]) -> list[StopCost]:
    """Return the estimate of each engine whose time to write its trace is known."""
    steps = recorded_steps(processes)
    found = []
    for engine in engines:
        label = engine_label(engine)
        count = steps.get(label, 0)
        if not count or engine["kind"] in SESSIONS or engine["status"] not in ("complete", "partial"):
            continue
        seconds, basis = _seconds(engine)
        if seconds:
            estimates = [(bound, seconds / count * bound) for bound in BOUNDS if bound != count]
            found.append(StopCost(label, count, seconds, basis, estimates))
    return found


def _seconds(engine: Mapping[str, Any]) -> tuple[float, str]:
    """Return the time to write the trace, and the source of that figure.

    If an engine ended its capture by itself, its stop does not show that time: the trace was written before.
    """
    if engine["write_seconds"]:
        return engine["write_seconds"], "write"
    if engine["stop_seconds"] is None or engine["capped_by"] == "engine":
        return 0.0, "stop"
    return max(engine["stop_seconds"] - (engine["overrun_seconds"] or 0.0), 0.0), "stop"
