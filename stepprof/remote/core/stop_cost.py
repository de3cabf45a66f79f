"""Compute the duration of an export and the overrun of a capture, from its traces and the clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepprof.run.model import Artifact

if TYPE_CHECKING:
    from stepprof.remote.base import Clock

__all__ = ["LATE_SECONDS", "overrun_seconds", "write_seconds"]

LATE_SECONDS = 1.0
"""An engine that records for longer than this after its window is logged."""
_ONE_CLOCK = ("local", "same-host")


def overrun_seconds(
    sent_unix_ns: int | None, artifacts: Iterable[Artifact], clock: Clock | None
) -> float | None:
    """Return how long an engine recorded on after its stop had been sent; None: it did not, or its traces or its clock do not tell.

    Args:
        sent_unix_ns: when its stop was sent; None: it was not.
        artifacts: what the stop brought.
        clock: the engine's against this process's.
    """
    ends = [artifact.ended_ns for artifact in artifacts if artifact.ended_ns is not None]
    if clock is None or not ends or sent_unix_ns is None:
        return None
    beyond = max(ends) - clock.offset_ns - sent_unix_ns
    return round(beyond / 1e9, 6) if beyond > clock.error_ns else None


def write_seconds(artifacts: Iterable[Artifact], clock: Clock | None) -> float | None:
    """Return how long an engine took from the end of its recording until its trace was written; None: not known.

    The time of a file is that of its file system: it is compared with the engine's only where both are of this host.
    """
    if clock is None or clock.method not in _ONE_CLOCK:
        return None
    took = [
        artifact.written_ns - artifact.ended_ns
        for artifact in artifacts
        if artifact.written_ns is not None and artifact.ended_ns is not None
    ]
    return round(max(took) / 1e9, 6) if took and max(took) > 0 else None
