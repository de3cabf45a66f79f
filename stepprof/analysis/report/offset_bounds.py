"""Bound the offset of two clocks by the calls that ranks on both of them took part in.

For each call, o = clock there - clock here is at least the last entry there minus the first leave
here, and at most the first leave there minus the last entry here. Clocks drift: a bound is exact at
the time of the call, and widens with the distance from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Times

DRIFT = 5e-4
"""The highest rate at which two clocks drift apart: 500 ppm.

The Linux kernel lets the error of a clock grow by that much and limits its correction to it
(MAXFREQ of NTP). Free crystals differ by 100 ppm at most.
"""
READING_NS = 10_000
"""The error of an event's time on its own host's clock.

In a trace of an H100 no kernel began less than 9.6 µs after its launch or ended less than 8.2 µs
before its synchronisation.
"""
_RATE = DRIFT * (1 + DRIFT)
"""`DRIFT` as a share of a duration that one of the two clocks measured."""


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    """The calls that two islands have in common: the last entry and the first leave of each, by the
    island's own clock.
    """

    here: str
    there: str
    entered: Times
    left: Times
    entered_there: Times
    left_there: Times

    def turned(self) -> Link:
        """Return the same calls as seen from the other island."""
        return Link(self.there, self.here, self.entered_there, self.left_there, self.entered, self.left)


def offset_between(link: Link, extent: tuple[int, int]) -> tuple[int, int] | None:
    """Return the offset of the island there from the one here, and its error over the extent (on
    the clock there).

    None: no offset fits.
    """
    middle = int(np.median(link.left_there - link.left))
    origin = int(link.entered_there[0])
    low = (link.entered_there - link.left - middle).astype(np.float64) - 2 * READING_NS
    high = (link.left_there - link.entered - middle).astype(np.float64) + 2 * READING_NS
    at_low, at_high = ((each - origin).astype(np.float64) for each in (link.entered_there, link.left_there))
    highest = _Bound(at_high, high)
    if (low > highest.at(at_low)).any():
        return None
    first, last = (float(edge - origin) for edge in extent)
    above, below = highest.farthest(first, last), -_Bound(at_low, -low).farthest(first, last)
    largest, smallest = low.max(), high.min()
    offset = min(max(0.0, largest), smallest) if largest <= smallest else (largest + smallest) / 2
    offset = round(offset)
    return middle + offset, int(np.ceil(max(above - offset, offset - below)))


class _Bound:
    """Upper bounds at some times. At other times a bound is higher by `_RATE` times the distance."""

    def __init__(self, time: npt.NDArray[np.float64], value: npt.NDArray[np.float64]) -> None:
        order = np.argsort(time, kind="stable")
        self.time, value = time[order], value[order]
        rising, falling = value - _RATE * self.time, value + _RATE * self.time
        after = np.minimum.accumulate(rising) + _RATE * self.time
        before = np.minimum.accumulate(falling[::-1])[::-1] - _RATE * self.time
        self.value = np.minimum(after, before)

    def at(self, time: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the bound at some times."""
        right = np.searchsorted(self.time, time)
        left = np.clip(right - 1, 0, None)
        right = np.clip(right, None, len(self.time) - 1)
        return np.minimum(
            *(self.value[side] + _RATE * np.abs(time - self.time[side]) for side in (left, right))
        )

    def farthest(self, first: float, last: float) -> float:
        """Return the largest value of the bound between two times."""
        gaps = np.diff(self.time)
        peaks = (self.value[:-1] + self.value[1:] + _RATE * gaps) / 2
        inside = (self.time[1:] > first) & (self.time[:-1] < last)
        edges = self.at(np.array([first, last]))
        return float(max(edges.max(), peaks[inside].max(initial=-np.inf)))
