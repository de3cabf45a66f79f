"""Hold what samples show of a process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from stepprof.analysis.report.intervals import EMPTY, Intervals

__all__ = ["STILL_NS", "Activity"]

STILL_NS = 20_000_000
"""A thread that waits for another process is ready to continue less than this after the other one has left the region."""


class Activity(NamedTuple):
    """What samples show of the thread that opened the windows of a process."""

    computing: Intervals = EMPTY
    """It used a CPU, or was ready to."""
    waiting: Intervals = EMPTY
    """It waited for something other than a time."""
    others: Intervals = EMPTY
    """Another thread of the process worked."""
    blocked: Intervals = EMPTY
    """It waited, as its samples show, for something other than a time or a collective, and was not yet ready to continue."""
    device: Intervals = EMPTY
    """It was in a call that waits for a device: for the work there, or for a collective that is queued there."""
    spills: Sequence[tuple[int, int]] = ()
    """From the last of equal samples to the next one, in order: what it did meanwhile is not known."""

    @property
    def until(self) -> int:
        """The end of what samples show; 0: they show nothing."""
        ends = [int(each.end[-1]) for each in (self.computing, self.waiting, self.device) if len(each)]
        return max([*ends, *(end for _, end in self.spills[-1:])], default=0)

    def in_collectives(self, start: int, end: int) -> int:
        """Return how long it waited in a collective between two times [ns]."""
        return (self.waiting - self.blocked).clip(start, end).total

    def expected(self, time: int) -> int:
        """Return when something most likely ended that samples show until some time: in the middle between two samples."""
        at = bisect_left(self.spills, time, key=itemgetter(1))
        if at < len(self.spills) and self.spills[at][1] == time:
            return sum(self.spills[at]) // 2
        return time

    def certain(self, when: Intervals, start: int, end: int) -> Intervals:
        """Return the part of what samples show between two times, without what only the last one before the first shows."""
        at = bisect_right(self.spills, (start, start)) - 1
        since = max(start, self.spills[at][1]) if at >= 0 else start
        return when.clip(min(since, end), end)
