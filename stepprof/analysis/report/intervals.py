"""Compute with sets of intervals: unions, intersections, and the nesting of slices.

Everything is vectorised: a trace has millions of slices. An `Intervals` is sorted and disjoint, and
has no empty part. So its length is a plain sum, and two of them are compared in one pass. Times are
integer nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Moment = Annotated[int, "time"]
"""A point in time in a digest: nanoseconds on the clock of its source's island."""
Moments = Annotated[bytes, "time"]
"""Packed points in time, or the packed edges of intervals."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of points in time, as half-open intervals from `start` to `end`."""

    start: Times
    end: Times

    @classmethod
    def union(cls, start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
        """Return the union of intervals, which may be in any order.

        >>> Intervals.union([5, 0, 2], [6, 3, 4]).pairs()
        [(0, 4), (5, 6)]
        """
        start, end = np.asarray(start, np.int64), np.asarray(end, np.int64)
        real = end > start
        if not real.all():
            start, end = start[real], end[real]
        if not len(start):
            return EMPTY
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        begins = np.flatnonzero(start[1:] > reach[:-1]) + 1
        first = np.concatenate(([0], begins))
        last = np.concatenate((begins - 1, [len(start) - 1]))
        return cls(start[first], reach[last])

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Intervals:
        """Return the union of intervals, each a pair of its start and its end."""
        pairs = [*pairs]
        return cls.union([start for start, _ in pairs], [end for _, end in pairs])

    @classmethod
    def all_of(cls, sets: Iterable[Intervals]) -> Intervals:
        """Return the union of several sets."""
        sets = [EMPTY, *sets]
        return cls.union(
            np.concatenate([each.start for each in sets]), np.concatenate([each.end for each in sets])
        )

    @classmethod
    def one(cls, start: int, end: int) -> Intervals:
        """Return a single interval; `EMPTY` if it has no length."""
        return cls(np.array([start], np.int64), np.array([end], np.int64)) if end > start else EMPTY

    @classmethod
    def unpack(cls, data: bytes) -> Intervals:
        """Return the intervals that `pack` stored."""
        both = np.frombuffer(data, "<i8").astype(np.int64)
        half = len(both) // 2
        return cls(both[:half], both[half:])

    def pack(self) -> bytes:
        """Return the intervals as bytes, to be stored in JSON."""
        return np.concatenate((self.start, self.end)).astype("<i8").tobytes()

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Nanoseconds."""
        return int((self.end - self.start).sum())

    def pairs(self) -> list[tuple[int, int]]:
        """Return each interval, as Python's integers."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union(
            np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end))
        )

    def __and__(self, other: Intervals) -> Intervals:
        return self._where(other, 3)

    def __sub__(self, other: Intervals) -> Intervals:
        return self._where(other, 1)

    def _where(self, other: Intervals, level: int) -> Intervals:
        """Return where 1 inside `self` plus 2 inside `other` is `level`."""
        if not len(self) or not len(other):
            return self if level == 1 else EMPTY
        times = np.concatenate((self.start, self.end, other.start, other.end))
        steps = np.repeat(np.array([1, -1, 2, -2]), [len(self), len(self), len(other), len(other)])
        order = np.argsort(times, kind="stable")
        times = times[order]
        levels = np.cumsum(steps[order])
        at = np.flatnonzero((levels[:-1] == level) & (times[1:] > times[:-1]))
        return Intervals.union(times[at], times[at + 1])

    def clip(self, start: int, end: int) -> Intervals:
        """Return the part between two times.

        >>> Intervals.union([0, 5], [3, 9]).clip(2, 6).pairs()
        [(2, 3), (5, 6)]
        """
        low, high = np.maximum(self.start, start), np.minimum(self.end, end)
        real = high > low
        return Intervals(low[real], high[real])

    def within(self, start: Times, end: Times) -> Times:
        """Return how much of each given interval this set covers.

        >>> Intervals.union([0, 5], [3, 9]).within(np.array([2, 4]), np.array([6, 5])).tolist()
        [2, 0]
        """
        return self._until(end) - self._until(start)

    def _until(self, time: Times) -> Times:
        """Return how much of this set is before each given time."""
        if not len(self):
            return np.zeros(len(time), np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        at = np.searchsorted(self.start, time, side="right")
        return before[at] - np.where(at > 0, np.maximum(self.end[at - 1] - time, 0), 0)

    def coarse(self, most: int) -> tuple[Intervals, int]:
        """Return at most `most` intervals, with the narrowest gaps closed, and the nanoseconds of
        closed gaps.

        >>> coarse, closed = Intervals.union([0, 2, 9], [1, 3, 10]).coarse(2)
        >>> coarse.pairs(), closed
        ([(0, 3), (9, 10)], 1)
        """
        if len(self) <= most:
            return self, 0
        gaps = self.start[1:] - self.end[:-1]
        widest = np.argsort(gaps, kind="stable")[len(gaps) - (most - 1) :]
        open_gaps = np.sort(widest)
        first = np.concatenate(([0], open_gaps + 1))
        last = np.concatenate((open_gaps, [len(self) - 1]))
        coarse = Intervals(self.start[first], self.end[last])
        return coarse, coarse.total - self.total


EMPTY = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def nesting_order(track: npt.NDArray[np.integer], start: Times, end: Times) -> Indices:
    """Return the order in which slices open: by track, then by time. Of two that start together,
    the longer one is first.
    """
    if not len(start):
        return np.zeros(0, np.intp)
    low = int(start.min())
    bits = max(int(start.max()) - low, 1).bit_length()
    if bits + int(track.max()).bit_length() >= 63:
        return np.lexsort((-end, start, track))
    key = (track.astype(np.int64) << bits) | (start - low)
    order = np.argsort(key, kind="stable")
    key = key[order]
    same = np.zeros(len(key) + 1, bool)
    same[1:-1] = key[1:] == key[:-1]
    tied = np.flatnonzero(same[1:] | same[:-1])
    if len(tied):
        which = order[tied]
        order[tied] = which[np.lexsort((-end[which], key[tied]))]
    return order


def depths(track: npt.NDArray[np.integer], start: Times, end: Times) -> npt.NDArray[np.int32]:
    """Return how many slices of its track are open when each one starts.

    The slices are in nesting order, and none is empty.
    """
    if not len(start):
        return np.zeros(0, np.int32)
    ranks = np.cumsum(np.concatenate(([0], track[1:] != track[:-1])))
    low = int(start.min())
    span = int(end.max()) - low + 1
    # times in a damaged file may be centuries apart
    if span.bit_length() + int(ranks[-1]).bit_length() >= 63:
        both, where = np.unique(np.concatenate((start, end)), return_inverse=True)
        start, end, low, span = where[: len(start)], where[len(start) :], 0, len(both)
    base = ranks.astype(np.int64) * span - low
    ended = np.searchsorted(np.sort(base + end, kind="stable"), base + start, side="right")
    return (np.arange(len(start)) - ended).astype(np.int32)


def self_times(track: npt.NDArray[np.integer], start: Times, duration: Times) -> Times:
    """Return the nanoseconds of each slice that none of its children covers, in the order of the
    arguments.

    The time of a child that outlives its parent counts against the parent until the parent ends. If
    slices of a track overlap without nesting, a slice is charged to at most one of the open slices:
    no time is negative.
    """
    own = duration.astype(np.int64, copy=True)
    real = np.flatnonzero(duration > 0)
    if len(real) < 2:
        return own
    end = start + duration
    order = real[nesting_order(track[real], start[real], end[real])]
    start, end, track = start[order], end[order], track[order]
    inside, parent = _parents(depths(track, start, end))
    shared = np.maximum(np.minimum(end[inside], end[parent]) - start[inside], 0)
    covered = np.bincount(parent, weights=shared, minlength=len(order)).astype(np.int64)
    own[order] = np.maximum(own[order] - covered, 0)
    return own


def _parents(depth: npt.NDArray[np.int32]) -> tuple[Indices, Indices]:
    """Return the slices inside others, and the parent of each: the last one before it that is one less deep.

    No slice is more than one deeper than the slice before it. So among those of one depth, in order, a slice that is
    deeper than the one before it is its first child, and the next ones have the same parent.
    """
    # numpy sorts small numbers in linear time
    small = depth.astype(np.uint16) if depth.max() < 1 << 16 else depth
    inside = np.argsort(small, kind="stable")[np.count_nonzero(depth == 0) :]
    before = inside - 1
    first = np.where(depth[before] < depth[inside], np.arange(len(inside)), 0)
    return inside, before[np.maximum.accumulate(first)]
