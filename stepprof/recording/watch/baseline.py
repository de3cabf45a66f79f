"""What is usual: the running history of one interval or of memory, and what falls out of it.

Robust on purpose. The median and the median of the distances from it do not move for a few wild values, so that one slow step neither hides the next one nor
makes everything look slow; and what varies much by itself has to vary far more to be told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.config.options.watch import WatchOptions

__all__ = ["Floor", "History", "Unusual", "median_of"]

TO_DEVIATION = 1.4826
"""The median distance from the median, times this, estimates the standard deviation of what is normally distributed."""

MIN_SAMPLES = 3
"""Fewer readings of the memory say nothing of its floor."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """A value that fell out of its history, and what was usual before it."""

    value: float
    median: float
    deviation: float
    """What a standard deviation would be, if the values were normally distributed."""

    @property
    def excess(self) -> float:
        """How much more it is than usual."""
        return self.value - self.median


class History:
    """The last values of one interval, in seconds.

    Args:
        options: how many values are ignored, needed and kept, and what is unusual.

    >>> from stepprof.config.options.watch import WatchOptions
    >>> history = History(WatchOptions(skip_first=0, min_steps=4, factor=2))
    >>> [history.add(seconds) for seconds in (1.0, 1.1, 0.9, 1.0, 1.9)]
    [None, None, None, None, None]
    >>> history.add(2.5).median
    1.0
    """

    __slots__ = ("_fresh", "_limit", "_options", "_skip", "_usual", "_values")

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._values: deque[float] = deque(maxlen=options.window)
        self._skip = options.skip_first
        self._usual = (0.0, 0.0)
        self._limit = 0.0
        self._fresh = 0
        """For how many more values what is usual is good enough to let one pass."""

    def add(self, value: float) -> Unusual | None:
        """Remember a value; what is unusual about it, if it is."""
        if self._skip:
            self._skip -= 1
            return None
        values, found = self._values, None
        if len(values) >= self._options.min_steps:
            if self._fresh <= 0:
                self._measure()
            elif value > self._limit:
                self._measure()  # no alert depends on what was usual some values ago
            self._fresh -= 1
            if value > self._limit:
                found = Unusual(value, *self._usual)
        values.append(value)
        return found

    def _measure(self) -> None:
        """Sorting at each value would cost more than the rest of watching."""
        options = self._options
        median = median_of(self._values)
        deviation = TO_DEVIATION * median_of([abs(value - median) for value in self._values])
        self._usual = (median, deviation)
        self._limit = max(
            median * options.factor, median + options.spread * deviation, median + options.min_seconds
        )
        self._fresh = max(1, len(self._values) // 4)


class Floor:
    """What memory falls back to: its lowest reading over so many steps, and by how much that has grown since it was told last.

    Within a step memory comes and goes; what never comes back is a leak, or a cache without a bound.

    Args:
        growth: how many bytes more are an alert.
        steps: over how many steps a floor is taken.
        skip_first: how many steps pass before the first.
    """

    __slots__ = ("_begun", "_growth", "_lowest", "_samples", "_steps", "_usual")

    def __init__(self, growth: int, steps: int, skip_first: int) -> None:
        self._growth = growth
        self._steps = steps
        self._begun = skip_first
        self._lowest: int | None = None
        self._samples = 0
        self._usual: int | None = None

    def add(self, reading: int, steps: int) -> Unusual | None:
        """A reading when so many steps have passed; by how much the floor has grown, where that is to be told."""
        if steps < self._begun:
            return None
        self._lowest = reading if self._lowest is None else min(self._lowest, reading)
        self._samples += 1
        if steps < self._begun + self._steps or self._samples < MIN_SAMPLES:
            return None
        floor, self._lowest, self._samples, self._begun = self._lowest, None, 0, steps
        if self._usual is None:
            self._usual = floor
        elif floor - self._usual >= self._growth:
            before, self._usual = self._usual, floor
            return Unusual(floor, before, 0.0)
        return None


def median_of(values: Iterable[float]) -> float:
    """The median of at least one value; `statistics` would be a slow import for it.

    >>> median_of([3.0, 1.0, 2.0]), median_of([1.0, 2.0])
    (2.0, 1.5)
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
