"""Compare the times of an engine's traces with its window: its clock, what they lack, how long it recorded on, and how long it wrote.

Traces may lack a part because another process started or stopped the capture that they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepprof.remote.base import Clock
from stepprof.run.model import Artifact

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow, Stopped
    from stepprof.run.schema import EngineEntry

SLACK_NS = 200_000_000
"""Allowance for the difference between a trace's times and the wall clock, and for drift within a step."""

TRACE_NS = 5_000_000
"""The largest error of a trace's times on its own host's clock, as far as `by_calls` relies on them."""


def by_calls(
    window: EngineWindow, stopped: Stopped, entry: EngineEntry, host: str, answered_ns: int
) -> Clock | None:
    """Return an engine's clock as its traces and the two calls of their window bound it.

    The engine began to record between the start's request and its answer, and ended between the stop's request and its answer.
    `answered_ns` is when the stop was answered. None: the traces do not state their times, or no offset fits all, as when another process began or ended the capture.
    """
    if entry.start_unix_ns is None or entry.end_unix_ns is None or stopped.partial:
        return None
    sent = entry.start_unix_ns - int((entry.start_seconds or 0) * 1e9)
    bounds = []
    for artifact in stopped.artifacts:
        if artifact.began_ns is None or artifact.ended_ns is None:
            continue
        high, low = [artifact.began_ns - sent], [artifact.ended_ns - answered_ns]
        if not (window.options.by_stage or window.options.delay_iterations):
            low.append(artifact.began_ns - entry.start_unix_ns)
        if stopped.capped_by is None and not window.options.by_stage:
            high.append(artifact.ended_ns - entry.end_unix_ns)
        bounds.append((max(low) - TRACE_NS, min(high) + TRACE_NS))
    if not bounds or max(least for least, _ in bounds) > min(most for _, most in bounds):
        return None
    # workers may have several clocks that differ by less than what bounds them
    least, most = min(least for least, _ in bounds), max(most for _, most in bounds)
    return Clock(host, (least + most) // 2, (most - least + 1) // 2, "calls")


def lacking(window: EngineWindow, stopped: Stopped, entry: EngineEntry, clock: Clock | None) -> str | None:
    """Return what the traces of an engine lack of its window, by their own times; None: nothing that can be detected."""
    options = window.options
    if options.by_stage:
        return None
    begun = None if options.delay_iterations else entry.start_unix_ns
    ended = entry.end_unix_ns if stopped.capped_by is None else entry.start_unix_ns
    return None if ended is None else shortfall(stopped.artifacts, begun, ended, clock)


def shortfall(
    artifacts: Sequence[Artifact],
    begun_ns: int | None,
    ended_ns: int,
    clock: Clock | None,
) -> str | None:
    """Return what the traces lack of a window, by their own times; None: nothing that can be detected.

    Args:
        artifacts: the engine's traces; those that do not state when their profiler ran are ignored.
        begun_ns: when the engine's start was answered, by this host's clock; None: its traces begin later on purpose.
        ended_ns: when its stop was sent; if the engine's own limit ended it, `begun_ns`.
        clock: the engine's clock against this one; None: unknown, and only the lengths are compared.
    """
    began = [artifact.began_ns for artifact in artifacts if artifact.began_ns is not None]
    ended = [artifact.ended_ns for artifact in artifacts if artifact.ended_ns is not None]
    if not began or not ended:
        return None
    if clock is None:  # how long they are shows without one
        missing = 0 if begun_ns is None else ended_ns - begun_ns - (min(ended) - max(began))
        text = f"the traces cover {missing / 1e9:.3g} s less than the window: another process began or ended the capture"
        return text if missing > SLACK_NS else None
    slack = SLACK_NS + clock.error_ns
    begins, ends = max(began) - clock.offset_ns, min(ended) - clock.offset_ns
    late = 0 if begun_ns is None else begins - begun_ns
    early = ended_ns - ends
    if late > slack:
        return f"another process began the capture that was returned, {late / 1e9:.3g} s after the start was answered"
    if early > slack:
        return f"another process ended the capture {early / 1e9:.3g} s before the stop was sent"
    return None


LATE_SECONDS = 1.0
"""An engine that records for longer than this after its window is logged."""
_ONE_CLOCK = ("local", "same-host")


def overrun_seconds(
    sent_unix_ns: int | None, artifacts: Iterable[Artifact], clock: Clock | None
) -> float | None:
    """Return how long an engine kept recording after its stop was sent; None: it did not, or its
    traces or its clock do not show it.
    """
    ends = [artifact.ended_ns for artifact in artifacts if artifact.ended_ns is not None]
    if clock is None or not ends or sent_unix_ns is None:
        return None
    beyond = max(ends) - clock.offset_ns - sent_unix_ns
    return round(beyond / 1e9, 6) if beyond > clock.error_ns else None


def write_seconds(artifacts: Iterable[Artifact], clock: Clock | None) -> float | None:
    """Return how long an engine took from the end of its recording until its trace was written;
    None: unknown. The time of a file comes from its file system: it is compared with the engine's
    only if both are of this host.
    """
    if clock is None or clock.method not in _ONE_CLOCK:
        return None
    took = [
        artifact.written_ns - artifact.ended_ns
        for artifact in artifacts
        if artifact.written_ns is not None and artifact.ended_ns is not None
    ]
    return round(max(took) / 1e9, 6) if took and max(took) > 0 else None
