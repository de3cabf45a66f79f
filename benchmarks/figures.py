"""Hold the results of every measurement, and their statistics.

A figure is a minimum and a median over interleaved rounds, with the spread between the quartiles.
The minimum is the cost of the code without a disturbance, and repeats well on a busy machine. The
median and the spread show how reliable it is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

__all__ = ["Figure", "Row", "within"]


@dataclass(frozen=True)
class Figure:
    """One quantity over several rounds."""

    minimum: float
    median: float
    spread: float
    """Distance between the quartiles, as a fraction of the median."""
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        median = statistics.median(samples)
        if len(samples) < 2:
            return cls(min(samples), median, 0.0, len(samples))
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(min(samples), median, (high - low) / abs(median) if median else 0.0, len(samples))

    def less(self, base: Figure) -> Figure:
        """Return this figure without the cost of the base: the difference of the minima, and of the medians."""
        return Figure(self.minimum - base.minimum, self.median - base.median, self.spread, self.rounds)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``added`` is the value minus that of the bare call or process. ``ratio`` is to stepprof's own row of the group (the one
    with ratio 1). ``limit`` holds for ``judged``, the quantity that ``limit_on`` names.
    """

    group: str
    name: str
    unit: str
    value: float
    median: float | None = None
    spread: float | None = None
    added: float | None = None
    ratio: float | None = None
    limit: float | None = None
    limit_on: str | None = None
    judged: float | None = None
    note: str = ""

    @property
    def within(self) -> bool | None:
        """Return whether the value is within the limit; None if there is none."""
        return within(self.judged, self.limit)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "within": self.within}


def within(judged: float | None, limit: float | None) -> bool | None:
    if judged is None or limit is None:
        return None
    return judged <= limit
