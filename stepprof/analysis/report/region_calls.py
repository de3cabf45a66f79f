"""Find the region that called each operator, that launched each kernel, and that is around each communication call.

An operator belongs to the innermost region of its thread when it starts. A kernel runs later than its
launch, perhaps in another region: it belongs to the region in which the host launched it. torch
connects the two with an arrow.

A communication call of a thread is in regions of the thread that started it, by time. For kernels, the
annotations count that torch writes on the stream itself (``gpu_user_annotation``): from the first kernel
that was launched in a region to the last. Without these, the region of a kernel is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Indices, Intervals, Times
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source

STEP, OTHERS, UNCLEAR = range(3)
"""The first nodes of a tree: the windows of the process, its other threads, and the calls of unknown regions."""
BETWEEN = -1
"""In place of a node: no window was open."""
REST = -1
"""In place of a name: all others together."""
MOST_NAMES = 300
MOST_CALLED = 12
NONE = -1
"""Stands for a name: no region contains the call, or it is not known which."""
LATE_NS = 1_000_000
"""How much later than the region that waits for it a call of a thread may end.

The thread continues before the worker has closed the annotation: by 0.1 ms (torch 2.13, gloo), and
more where threads have to be scheduled.
"""


class Called(msgspec.Struct, frozen=True, array_like=True):
    """The calls of one operator or kernel by one region; nanoseconds."""

    name: int
    """Its index among the tree's names; `REST`: all others together."""
    calls: int
    total: int
    own: int


@dataclass(frozen=True, slots=True)
class Calls:
    """What each node called."""

    names: list[str]
    ops: list[list[Called]]
    kernels: list[list[Called]]


@dataclass(frozen=True, slots=True)
class Lane:
    """The innermost node of a thread over time: from ``time[n]`` on it is ``node[n]``, before that
    ``first``.
    """

    time: Times
    node: Indices
    first: int

    @classmethod
    def of(cls, start: Times, end: Times, node: Indices, otherwise: int) -> Lane:
        """Return a lane from disjoint stretches in order, each with its node. Outside of them the
        node is `otherwise`.
        """
        time = np.column_stack((start, end)).ravel()
        both = np.column_stack((node, np.full(len(node), otherwise))).ravel().astype(np.intp)
        last = np.append(time[1:] != time[:-1], True) if len(time) else np.zeros(0, bool)
        return cls(time[last], both[last], otherwise)

    def at(self, time: Times) -> Indices:
        """Return the node at each time."""
        values = np.concatenate(([self.first], self.node)).astype(np.intp)
        return values[np.searchsorted(self.time, time, side="right")]

    def during(self, when: Intervals, node: int) -> Lane:
        """Return the lane with `node` during some intervals."""
        if not len(when):
            return self
        time = distinct(self.time, np.concatenate((when.start, when.end)))
        inside = when.within(time, time + 1) > 0
        return Lane(time, np.where(inside, node, self.at(time)), self.first)

    def where(self, when: Intervals, otherwise: int) -> Lane:
        """Return the lane with `otherwise` outside of some intervals."""
        time = distinct(self.time, np.concatenate((when.start, when.end)))
        inside = when.within(time, time + 1) > 0
        return Lane(time, np.where(inside, self.at(time), otherwise), otherwise)

    def inside(self, otherwise: int) -> Intervals:
        """Return when it is anything but `otherwise`."""
        known = np.flatnonzero(self.node[:-1] != otherwise)
        return Intervals.union(self.time[known], self.time[known + 1])


def calls_of(source: Source, chosen: Chosen, own: Times, lanes: list[Lane], nodes: int) -> Calls:
    """Return what each node called.

    Args:
        source: with its arrows from launches to kernels.
        chosen: its slices by kind.
        own: the self time of each operator.
        lanes: one of each track.
        nodes: how many there are.
    """
    slices = source.slices
    ops, kernels = chosen.ops, chosen.device
    node = _node_at(lanes, slices.track[ops], slices.start[ops])
    launched = _launched(source, lanes, kernels)
    table = _Names(source.names)
    op_calls = table.count(nodes, node, slices.name[ops], slices.duration[ops], own)
    duration = slices.duration[kernels]
    kernel_calls = table.count(nodes, launched, slices.name[kernels], duration, duration)
    return Calls(table.names, op_calls, kernel_calls)


def _node_at(lanes: list[Lane], track: npt.NDArray[np.int32], time: Times) -> Indices:
    """Return the innermost node of each track at each time."""
    node = np.full(len(track), UNCLEAR, np.intp)
    for each in np.flatnonzero(np.bincount(track, minlength=len(lanes))).tolist():
        mine = track == each
        node[mine] = lanes[each].at(time[mine])
    return node


def _launched(source: Source, lanes: list[Lane], kernels: Indices) -> Indices:
    """Return the node that launched each kernel; `UNCLEAR`: no arrow ends at it."""
    slices, flows = source.slices, source.flows
    node = np.full(len(kernels), UNCLEAR, np.intp)
    if not len(kernels) or not len(flows):
        return node
    track, start = slices.track[kernels], slices.start[kernels]
    order = np.lexsort((start, track))
    low = int(min(start.min(), flows.end.min()))
    bits = int(max(start.max(), flows.end.max()) - low).bit_length()
    if bits + len(source.tracks).bit_length() >= 63:
        return node
    keys = (track[order].astype(np.int64) << bits) | (start[order] - low)
    ends = (flows.end_track.astype(np.int64) << bits) | (flows.end - low)
    at = np.searchsorted(keys, ends)
    at[at == len(keys)] = 0
    hit = keys[at] == ends
    node[order[at[hit]]] = _node_at(lanes, flows.start_track[hit], flows.start[hit])
    return node


class _Names:
    """The names of calls, numbered in the order of their first use."""

    def __init__(self, names: list[str]) -> None:
        self._all = names
        self._numbers: dict[int, int] = {}

    @property
    def names(self) -> list[str]:
        """Return the names, in the order of their numbers."""
        return [self._all[each] for each in self._numbers]

    def count(
        self, nodes: int, node: Indices, name: npt.NDArray[np.int32], duration: Times, own: Times
    ) -> list[list[Called]]:
        """Return the costliest calls of each node, and the sum of the others."""
        known = node >= 0
        if not known.all():
            node, name, duration, own = node[known], name[known], duration[known], own[known]
        spent = np.bincount(name, own, len(self._all))
        there = np.flatnonzero(np.bincount(name, minlength=len(self._all)))
        kept = there[np.argsort(-spent[there], kind="stable")][:MOST_NAMES]
        place = np.full(len(self._all), len(kept), np.intp)
        place[kept] = np.arange(len(kept))
        width = len(kept) + 1
        cell = node * width + place[name]
        calls, totals, owns = (
            np.bincount(cell, weights, nodes * width).astype(np.int64).reshape(nodes, width)
            for weights in (None, duration, own)
        )
        return [self._called(kept, *each) for each in zip(calls, totals, owns, strict=True)]

    def _called(self, kept: Indices, calls: Times, totals: Times, owns: Times) -> list[Called]:
        there = np.flatnonzero(calls[:-1])
        order = there[np.lexsort((-totals[there], -owns[there]))]
        top, rest = order[:MOST_CALLED], np.append(order[MOST_CALLED:], len(kept))
        called = [
            Called(self._number(int(kept[at])), int(calls[at]), int(totals[at]), int(owns[at]))
            for at in top.tolist()
        ]
        others = int(calls[rest].sum())
        if others:
            called.append(Called(REST, others, int(totals[rest].sum()), int(owns[rest].sum())))
        return called

    def _number(self, name: int) -> int:
        return self._numbers.setdefault(name, len(self._numbers))


def regions_around(source: Source, chosen: Chosen) -> npt.NDArray[np.int64]:
    """Return for each chosen call the name of the innermost region around all of it, as an index
    into the source's names.
    """
    slices, calls = source.slices, chosen.calls
    found = np.full(len(calls), NONE, np.int64)
    track = slices.track[calls]
    on_stream = np.array([each.kind == "stream" for each in source.tracks], bool)
    on_host = ~on_stream[track]
    threads = distinct(slices.track[chosen.dispatches])
    regions = chosen.regions
    # regions of the threads that start collectives, and of coroutines, which may be on any thread
    if len(threads):
        tasks = np.flatnonzero([each.kind == "async" for each in source.tracks])
        regions = regions[np.isin(slices.track[regions], np.concatenate((threads, tasks)))]
    found[on_host] = _innermost(source, regions, calls[on_host], LATE_NS)
    places = [each.key[1:] for each in source.tracks]
    for stream in distinct(track[~on_host]).tolist():
        has_thread = np.array([place == places[stream] for place in places], bool)
        notes = chosen.annotations[has_thread[slices.track[chosen.annotations]]]
        which = np.flatnonzero(track == stream)
        found[which] = _innermost(source, notes, calls[which], 0)
    return found


def _innermost(source: Source, regions: Indices, calls: Indices, late_ns: int) -> npt.NDArray[np.int64]:
    """Return for some calls the name of the innermost of some regions around each."""
    if not len(regions):
        return np.full(len(calls), NONE, np.int64)
    slices = source.slices
    regions = regions[np.lexsort((-slices.duration[regions], slices.start[regions]))]
    begins, ends = slices.start[regions], slices.start[regions] + slices.duration[regions]
    around = _around(begins, ends)
    start = slices.start[calls]
    end = start + slices.duration[calls]
    found = np.searchsorted(begins, start, side="right") - 1
    while True:
        outside = (found >= 0) & ((ends[found] + late_ns < end) | (ends[found] <= start))
        if not outside.any():
            return np.where(found >= 0, slices.name[regions][found], NONE)
        found[outside] = around[found[outside]]


def _around(begins: Times, ends: Times) -> npt.NDArray[np.int64]:
    """Return for some regions, by their start, the region around each; -1: none."""
    around = np.full(len(begins), -1, np.int64)
    opened: list[tuple[int, int]] = []
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        while opened and opened[-1][1] < end and opened[-1][1] <= begin:
            opened.pop()
        around[at] = opened[-1][0] if opened else -1
        opened.append((at, end))
    return around
