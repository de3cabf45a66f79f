"""Nest slices: sort them by row, find their parents, and put overlapping ones on lanes.

A viewer stacks the slices of a row by time only. It cannot draw a slice that begins within another
one and outlasts it: Perfetto drops it (and counts it in its `stats`). Such slices go to rows of
their own, the lanes of their track. An empty slice counts as one nanosecond long, since viewers
draw it so.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Flags, Flows, Indices, Source, Times, Track

Positions = npt.NDArray[np.int64]
_LARGEST = 2**62
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Row:
    """A drawn track, or one lane of it."""

    track: int
    lane: int = 0


@dataclass(slots=True)
class Nesting:
    """Slices in the order (row, start, longest first). All columns but `order` are in that order,
    and `parent` and `enclosing` are indices into it.
    """

    order: Positions
    """The index of each slice in the source."""
    row: Indices
    start: Times
    end: Times
    parent: Positions
    """The innermost slice around each; -1: none."""

    def enclosing(self, row: Indices, time: Times) -> Positions:
        """Return the innermost slice of `row` around `time`; -1: none.

        A slice that ends at `time` counts only if no other one contains it.
        """
        found = _last_begun(self, row, time)
        ending = np.full(len(found), -1, np.int64)
        looking = np.flatnonzero(found >= 0)
        while len(looking):
            at = found[looking]
            looking = looking[self.end[at] <= time[looking]]
            at = found[looking]
            just = (self.end[at] == time[looking]) & (ending[looking] < 0)
            ending[looking[just]] = at[just]
            found[looking] = self.parent[at]
            looking = looking[found[looking] >= 0]
        return np.where(found >= 0, found, ending)


@dataclass(slots=True)
class Layout:
    """The drawing of a source: its rows, the slices on them, and the slices that its flows connect."""

    rows: list[Row]
    nesting: Nesting
    track_row: Indices
    """The first row of each track, for its instants and counters."""


@dataclass(slots=True)
class BoundFlows:
    """The flows that can be drawn."""

    drawn: Positions
    """Their indices among the flows of the source."""
    first: Positions
    """The slice in which each starts, as an index into the nesting."""
    last: Positions


def lay_out(source: Source) -> Layout:
    """Assign a row to every slice of a source, so that the slices of a row nest."""
    slices = source.slices
    rows = [Row(track) for track in range(len(source.tracks))]
    nesting = nest(slices.track.astype(np.int32, copy=False), slices.start, slices.duration)
    row = _spread(source, nesting, rows)
    if row is not None:
        del nesting  # these arrays are as large as the slices themselves
        nesting = nest(row, slices.start, slices.duration)
    return Layout(rows, nesting, np.arange(len(source.tracks), dtype=np.int32))


def _spread(source: Source, nesting: Nesting, rows: list[Row]) -> Indices | None:
    """Return the row of each slice, and add lanes for crossing slices to `rows`; None: no slices
    cross.
    """
    crossing = _crossing(nesting)
    if not crossing.any():
        return None
    row = source.slices.track.astype(np.int32, copy=True)
    for bad in distinct(nesting.row[crossing]).tolist():
        members = np.arange(*np.searchsorted(nesting.row, (bad, bad + 1)))
        if source.tracks[bad].kind != "async":
            members = members[_in_knots(nesting.start[members], nesting.end[members], crossing[members])]
        lanes = _lanes(source.tracks[bad], nesting.start[members], nesting.end[members])
        for lane in range(1, int(lanes.max()) + 1):
            rows.append(Row(bad, lane))
        moved = lanes > 0
        row[nesting.order[members[moved]]] = len(rows) - 1 - int(lanes.max()) + lanes[moved]
    return row


def nest(row: Indices, start: Times, duration: Times) -> Nesting:
    """Sort slices by row and time, and find the parent of each.

    The parents are right on rows with nesting slices only; on others some slices outlast their
    parent.
    """
    end = start + np.maximum(duration, 1)
    count = len(start)
    place = np.arange(count)
    if not count:
        return Nesting(place, row, start, end, place)
    begins, ends = _keys(row, start, row, end)
    order = _sorted(begins, end)
    row, start, end, begins = row[order], start[order], end[order], begins[order]
    # the number of open slices: those that began earlier, minus those that have ended
    depth = place - np.searchsorted(_in_order(ends[order]), begins, side="right")
    by_depth = _in_order(depth * count + place)
    before = np.searchsorted(by_depth, by_depth - count) - 1
    parent = np.empty(count, np.int64)
    parent[by_depth % count] = np.where(by_depth >= count, by_depth[before] % count, -1)
    return Nesting(order, row, start, end, parent)


def bind_flows(flows: Flows, layout: Layout) -> BoundFlows:
    """Find the slices that flows connect.

    Flows that end outside of slices on all lanes of their track, and those that run backwards, are
    left out.
    """
    lanes: dict[int, list[int]] = {}
    for number, row in enumerate(layout.rows):
        if row.lane:
            lanes.setdefault(row.track, []).append(number)
    first = _bind(flows.start_track, flows.start, layout.nesting, lanes)
    last = _bind(flows.end_track, flows.end, layout.nesting, lanes)
    drawn = np.flatnonzero((first >= 0) & (last >= 0) & (flows.start <= flows.end))
    return BoundFlows(drawn, first[drawn], last[drawn])


def _bind(track: Indices, time: Times, nesting: Nesting, lanes: dict[int, list[int]]) -> Positions:
    found = nesting.enclosing(track, time)
    for number, others in lanes.items():
        here = np.flatnonzero(track == number)
        if len(here):
            found[here] = _innermost(nesting, [number, *others], time[here])
    return found


def _innermost(nesting: Nesting, rows: list[int], time: Times) -> Positions:
    """Return the latest slice on some rows around each time; -1: none.

    A slice that ends at a time counts only if no other one contains it.
    """
    members = np.flatnonzero(np.isin(nesting.row, rows))
    members = members[np.lexsort((-nesting.end[members], nesting.start[members]))]
    start, end = nesting.start[members], nesting.end[members]
    found = np.full(len(time), -1, np.int64)
    holding: list[tuple[int, int]] = []  # the latest of them first, when it ends
    order = np.argsort(time, kind="stable")
    begun = np.searchsorted(start, time[order], side="right").tolist()
    taken = 0
    for at, moment, until in zip(order.tolist(), time[order].tolist(), begun, strict=True):
        for number in range(taken, until):
            heapq.heappush(holding, (-number, int(end[number])))
        taken = until
        while holding and holding[0][1] <= moment:
            heapq.heappop(holding)
        if holding:
            found[at] = -holding[0][0]
    by_end = np.lexsort((start, end))
    last = np.searchsorted(end[by_end], time, side="right") - 1
    ending = np.where(last >= 0, by_end[last], -1)
    just = (found < 0) & (ending >= 0) & (end[ending] == time)
    found = np.where(just, ending, found)
    return np.where(found >= 0, members[found], -1)


def _last_begun(nesting: Nesting, row: Indices, time: Times) -> Positions:
    """Return the last slice of `row` that starts at `time` or earlier; -1: none."""
    if not len(nesting.row) or not len(time):
        return np.full(len(time), -1, np.int64)
    first = np.searchsorted(nesting.row, np.arange(int(row.max()) + 1))[row]
    begins, keys = _keys(nesting.row, nesting.start, row, time)
    found = np.searchsorted(begins, keys, side="right") - 1
    return np.where(found >= first, found, -1)


def _sorted(begins: Times, end: Times) -> Positions:
    """Return the order by start, the longest first among equal starts; otherwise stable."""
    order = np.argsort(begins, kind="stable")
    tied = np.flatnonzero(begins[order[1:]] == begins[order[:-1]])
    if len(tied):
        members = distinct(tied, tied + 1)
        some = order[members]
        order[members] = some[np.lexsort((-end[some], begins[some]))]
    return order


def _in_order(column: Times) -> Times:
    """Return the order by a merge sort: nearly sorted data, as here, takes a tenth of the time."""
    ordered: Times = np.sort(column, kind="stable")
    return ordered


def _keys(row: Indices, time: Times, other_row: Indices, other: Times) -> tuple[Times, Times]:
    """Return keys that sort two columns of times by row and then by time."""
    low = min(int(time.min()), int(other.min()))
    span = max(int(time.max()), int(other.max())) - low + 1
    # days of time on millions of rows do not fit: use ranks instead of times
    if (max(int(row.max()), int(other_row.max())) + 1) * span >= _LARGEST:
        ranks = np.unique(np.concatenate((time, other)), return_inverse=True)[1].reshape(-1)
        time, other, low, span = ranks[: len(time)], ranks[len(time) :], 0, len(ranks) + 1
    return row.astype(np.int64) * span + (time - low), other_row.astype(np.int64) * span + (other - low)


def _crossing(nesting: Nesting) -> Flags:
    """Return which slices outlast their parent."""
    return (nesting.parent >= 0) & (nesting.end > nesting.end[nesting.parent])


def _in_knots(start: Times, end: Times, crossing: Flags) -> Flags:
    """Return which slices of a row touch a crossing slice, directly or through others. All others
    nest already.
    """
    begins_anew = np.ones(len(start), np.bool_)
    begins_anew[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    knot = np.cumsum(begins_anew) - 1
    tied = np.zeros(knot[-1] + 1, np.bool_)
    tied[knot[crossing]] = True
    knotted: Flags = tied[knot]
    return knotted


def _lanes(track: Track, start: Times, end: Times) -> Indices:
    """Return a lane for each slice of a track, in order.

    Requests of an engine have lanes of their own. Slices of a thread or stream that nest keep their
    row.
    """
    if track.kind == "async":
        return _flat(start, end)
    crossing = ~_stacks(start, end)
    lane = np.zeros(len(start), np.int32)
    lane[crossing] = 1 + _flat(start[crossing], end[crossing])
    return lane


def _stacks(start: Times, end: Times) -> Flags:
    """Return which intervals, in order, nest in those that were taken before."""
    taken = np.ones(len(start), np.bool_)
    stack: list[int] = []
    for number, (begin, stop) in enumerate(_both(start, end)):
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack and stop > stack[-1]:
            taken[number] = False
        else:
            stack.append(stop)
    return taken


def _both(start: Times, end: Times) -> Iterator[tuple[int, int]]:
    """Yield two columns as Python integers, few at a time: these take three times as much memory."""
    for at in range(0, len(start), _AT_ONCE):
        yield from zip(start[at : at + _AT_ONCE].tolist(), end[at : at + _AT_ONCE].tolist(), strict=True)


def _flat(start: Times, end: Times) -> Indices:
    """Distribute intervals, in order, onto as few lanes as possible without nesting: each on the
    first free lane.
    """
    lanes = np.zeros(len(start), np.int32)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    count = 0
    for number, (begin, stop) in enumerate(_both(start, end)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        lanes[number] = lane
        heapq.heappush(busy, (stop, lane))
    return lanes
