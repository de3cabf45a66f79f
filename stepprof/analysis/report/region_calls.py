"""Find the region that called each operator, and that launched each kernel.

An operator belongs to the innermost region of its thread when it starts. A kernel runs later than its
launch, perhaps in another region: it belongs to the region in which the host launched it. torch
connects the two with an arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Intervals, Times
from stepprof.analysis.report.slice_kinds import Chosen, Indices
from stepprof.analysis.timeline.model import Source

STEP, OTHERS, UNCLEAR = range(3)
"""The first nodes of a tree: the windows of the process, its other threads, and the calls of unknown regions."""
BETWEEN = -1
"""In place of a node: no window was open."""
REST = -1
"""In place of a name: all others together."""
MOST_NAMES = 300
MOST_CALLED = 12


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
        time = np.union1d(self.time, np.concatenate((when.start, when.end)))
        inside = when.within(time, time + 1) > 0
        return Lane(time, np.where(inside, node, self.at(time)), self.first)

    def where(self, when: Intervals, otherwise: int) -> Lane:
        """Return the lane with `otherwise` outside of some intervals."""
        time = np.union1d(self.time, np.concatenate((when.start, when.end)))
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
