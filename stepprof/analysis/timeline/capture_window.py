"""Determine the window of an engine's capture, and its error on the engine's clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepprof.analysis.timeline.clocks import unsure_ns
from stepprof.analysis.timeline.model import Alignment

LONGEST_SECONDS = 1e6
"""11 days. A manifest in which a call took longer is damaged."""
FAR_NS = 2**61
"""Larger than the distance between any two times."""


@dataclass(frozen=True, slots=True)
class CaptureWindow:
    """The window of an engine's capture, by the clock of its driver [ns]. `placed` moves it to the
    common clock.
    """

    start: int
    """When the engine answered the start."""
    end: int
    """When the stop was sent."""
    sent: int
    """When the start was sent; nothing was recorded before."""
    answered: int | None = None
    """When the engine answered the stop; nothing was recorded after. None: not known."""
    unsure: int | None = None
    """The error of a comparison with the engine's clock; None: the clocks were never compared."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CaptureWindow | None:
        """Return the window of an engine's entry in the manifest; None if its times are missing."""
        start, end = entry["start_unix_ns"], entry["end_unix_ns"]
        if not _is_time(start) or not _is_time(end):
            return None
        before, after = entry["start_seconds"], entry["stop_seconds"]
        return cls(
            int(start),
            max(int(end), int(start)),
            int(start) - (duration_ns(before) or 0),
            None if (lasted := duration_ns(after)) is None else int(end) + lasted,
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
        """Return the smallest and largest shift of a capture that puts it on the clock of the
        window; None: the clocks must be wrong.

        The clocks bound the shift. So does the capture: it is between the start's request and the stop's answer.

        Args:
            first: start of the capture, on its own clock.
            last: end of the capture, on its own clock.
        """
        wrong = FAR_NS if self.unsure is None else self.unsure
        if last + wrong < self.sent or (self.answered is not None and first - wrong > self.answered):
            return None
        low = max(-wrong, self.sent - first)
        high = wrong if self.answered is None else min(wrong, self.answered - last)
        return (low, high) if low <= high else (-wrong, wrong)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < FAR_NS


def duration_ns(seconds: float | None) -> int | None:
    """Return the nanoseconds of a call of the profiler; None if they are not known, or impossible."""
    return int(seconds * 1e9) if seconds is not None and 0 <= seconds < LONGEST_SECONDS else None
