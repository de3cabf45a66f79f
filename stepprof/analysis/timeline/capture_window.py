"""When the window of an engine's capture was, and how well that is known on the engine's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepprof.analysis.timeline.clocks import unsure_ns
from stepprof.analysis.timeline.model import Alignment

__all__ = ["FAR_NS", "CaptureWindow"]

LONGEST_SECONDS = 1e6
"""11 days: a manifest that says that a call took longer is damaged."""
FAR_NS = 2**61
"""Farther from any time than any other time."""


@dataclass(frozen=True, slots=True)
class CaptureWindow:
    """When the window of an engine's capture was, by the clock of the process that drives it [ns]; `placed` brings it onto the common clock."""

    start: int
    """The answer to the start."""
    end: int
    """The sending of the stop."""
    sent: int
    """The sending of the start: nothing was recorded before."""
    answered: int | None = None
    """The answer to the stop: nothing was recorded after. None: not known."""
    unsure: int | None = None
    """How wrong a comparison with the engine's clock may be; None: the clocks were never compared."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CaptureWindow | None:
        """Return the window of an engine's entry in the manifest; None where it does not say when that was."""
        start, end = entry["start_unix_ns"], entry["end_unix_ns"]
        if not _is_time(start) or not _is_time(end):
            return None
        before, after = entry["start_seconds"], entry["stop_seconds"]
        return cls(
            int(start),
            max(int(end), int(start)),
            int(start) - (_nanoseconds(before) or 0),
            None if _nanoseconds(after) is None else int(end) + (_nanoseconds(after) or 0),
        )

    def placed(self, driver: Alignment, engine: Alignment) -> CaptureWindow:
        """Return the window on the common clock, with the error of its comparison with the engine's clock."""
        offset = driver.offset_ns
        return CaptureWindow(
            self.start - offset,
            self.end - offset,
            self.sent - offset,
            None if self.answered is None else self.answered - offset,
            unsure_ns(driver, engine),
        )

    def shifts(self, first: int, last: int) -> tuple[int, int] | None:
        """Return by how much a capture may have to be moved to be on the clock of the window, at least and at most; None: the clocks cannot be right.

        The clocks bound it, and so does the capture itself: it lies between the sending of the start and the answer to the stop.

        Args:
            first: when the capture begins, on its own clock.
            last: when it ends.
        """
        wrong = FAR_NS if self.unsure is None else self.unsure
        if last + wrong < self.sent or (self.answered is not None and first - wrong > self.answered):
            return None
        low = max(-wrong, self.sent - first)
        high = wrong if self.answered is None else min(wrong, self.answered - last)
        return (low, high) if low <= high else (-wrong, wrong)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < FAR_NS


def _nanoseconds(seconds: float | None) -> int | None:
    return int(seconds * 1e9) if seconds is not None and 0 <= seconds < LONGEST_SECONDS else None
