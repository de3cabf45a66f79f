"""Detect outliers in the history of an interval, or of the memory.

The median and the median absolute deviation are robust: one slow step neither hides the next one
nor makes everything look slow. An interval that varies much must deviate far more for an alert.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.config.options.watch import WatchOptions

TO_DEVIATION = 1.4826
"""The median absolute deviation times this estimates the standard deviation of a normal distribution."""

MIN_SAMPLES = 3
"""Minimum number of memory readings: fewer do not show the floor."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """An outlier, and the usual value before it."""

    value: float
    median: float
    deviation: float
    """The standard deviation, if the values were normally distributed."""

    @property
    def excess(self) -> float:
        """Return the difference from the usual value."""
        return self.value - self.median


class History:
    """The last values of one interval, in seconds.

    Args:
        options: how many values are ignored, needed and kept, and when a value is an outlier.

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
        """Number of further values for which the last statistics suffice to accept a normal value."""

    def add(self, value: float) -> Unusual | None:
        """Add a value. Return it as an outlier if it is one."""
        if self._skip:
            self._skip -= 1
            return None
        values, found = self._values, None
        if len(values) >= self._options.min_steps:
            if self._fresh <= 0:
                self._measure()
            elif value > self._limit:
                self._measure()  # an alert uses current statistics
            self._fresh -= 1
            if value > self._limit:
                found = Unusual(value, *self._usual)
        values.append(value)
        return found

    def _measure(self) -> None:
        """Compute the statistics. Not at each value: sorting would cost more than all the rest."""
        options = self._options
        usual = median(self._values)
        deviation = TO_DEVIATION * median(abs(value - usual) for value in self._values)
        self._usual = (usual, deviation)
        self._limit = max(
            usual * options.factor, usual + options.spread * deviation, usual + options.min_seconds
        )
        self._fresh = max(1, len(self._values) // 4)


class Floor:
    """The lowest reading of the memory over a number of steps, and its growth since the last alert.

    Within a step memory grows and shrinks. A growing minimum is a leak, or a cache without a bound.

    Args:
        growth: bytes of growth that make an alert.
        steps: number of steps of one minimum.
        skip_first: number of steps to ignore at the beginning.
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
        """Add a reading taken after `steps` steps. Return the growth of the minimum if it makes an alert."""
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
