"""Check that the traces of an engine cover their window: they may come from a capture that another process started or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.remote.base import Clock, EngineWindow, Stopped
    from stepprof.run.model import Artifact
    from stepprof.run.schema import EngineEntry

__all__ = ["lacking", "shortfall"]

SLACK_NS = 200_000_000
"""What a trace's own times may differ from the wall clock, and a clock may drift within a step."""


def lacking(window: EngineWindow, stopped: Stopped, entry: EngineEntry, clock: Clock | None) -> str | None:
    """Return what the traces of an engine lack of its window, by the times that they state; None: nothing that can be seen."""
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
    """Return what the traces lack of a window by their own account; None: nothing that can be seen.

    Args:
        artifacts: what the engine has left; those that do not say when their profiler ran are passed over.
        begun_ns: when the engine's start was answered, by this host's clock; None: its traces begin later on purpose.
        ended_ns: when its stop was sent; where a bound of its own ended it, `begun_ns`.
        clock: the engine's clock against this one; None: it is not known, and nothing is compared.
    """
    began = [artifact.began_ns for artifact in artifacts if artifact.began_ns is not None]
    ended = [artifact.ended_ns for artifact in artifacts if artifact.ended_ns is not None]
    if clock is None or not began or not ended:
        return None
    slack = SLACK_NS + clock.error_ns
    begins, ends = max(began) - clock.offset_ns, min(ended) - clock.offset_ns
    late = 0 if begun_ns is None else begins - begun_ns
    early = ended_ns - ends
    if late > slack:
        return f"another process began the capture that came back, {late / 1e9:.3g} s after the start was answered"
    if early > slack:
        return f"another process ended the capture {early / 1e9:.3g} s before the stop was sent"
    return None
