"""Nest the regions of one source: roles, regions, and the operators and kernels that they called.

The thread that opened the windows is partitioned: each moment belongs to the region that opened last
and is still open, or to none. Roles and regions of other threads stand apart: their time runs
concurrently.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from stepprof.analysis.report.containment import NOWHERE, containers
from stepprof.analysis.report.intervals import Indices, Intervals, Times
from stepprof.analysis.report.nesting import innermost
from stepprof.analysis.report.region_calls import BETWEEN, OTHERS, STEP, UNCLEAR, Called, Lane, calls_of
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.report.window_threads import followed_threads
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.span_sources import OWN_TASKS

MOST_SLICES = 100_000
"""Shorter windows and regions beyond this number count as part of the region around them."""
MOST_NODES = 1000
MOST_DEPTH = 32
LONGEST_NAME = 500
UNKNOWN_TASK = -2
"""In place of the coroutine of a region in a trace, which does not state it: a region inside
another one counts as its child.
"""


class RegionNode(msgspec.Struct, frozen=True, array_like=True):
    """One node with everything that it called; nanoseconds."""

    parent: int
    name: str
    kind: str
    """``step``, ``threads``, ``unclear``, ``role`` or ``region``."""
    calls: int
    total: int
    """Time in which any call of it was open."""
    own: int
    """The same without the regions inside it."""
    ops: list[Called] = []
    kernels: list[Called] = []


class RegionTree(msgspec.Struct, frozen=True):
    """The regions of one source. A parent comes before its children."""

    nodes: list[RegionNode]
    names: list[str] = []
    """Of operators and kernels."""
    folded: int = 0
    """Windows and regions that count as part of the one around them."""
    windows: bool = True
    """Whether the source shows when the windows were open. False: the step is all that it recorded."""


def tree_of(source: Source, chosen: Chosen, own: Times) -> RegionTree | None:
    """Return the tree of a source; None without windows and regions.

    Args:
        source: with its arrows from launches to kernels.
        chosen: its slices by kind.
        own: the self time of each operator.
    """
    which = distinct(chosen.windows, chosen.regions)
    if not len(which) or source.origin.kind == "engine":
        return None
    folded = max(len(which) - MOST_SLICES, 0)
    if folded:
        longest = np.argpartition(-source.slices.duration[which], MOST_SLICES)[:MOST_SLICES]
        which = np.sort(which[longest])
    return _Tree(source, chosen, which).tree(folded, own)


class _Tree:
    """The nodes while the rows of a source are swept."""

    def __init__(self, source: Source, chosen: Chosen, which: Indices) -> None:
        self.source, self.chosen = source, chosen
        slices = source.slices
        self.start, self.end = slices.start, slices.start + slices.duration
        windows = chosen.windows if len(chosen.windows) else which[chosen.are_windows(which)]
        self.windows = dict(zip(windows.tolist(), chosen.window_roles(windows), strict=True))
        self.open = Intervals.union(self.start[windows], self.end[windows])
        self.since = int(self.start[windows].min(initial=np.iinfo(np.int64).max))
        self.keys: dict[tuple[int, str, str], int] = {
            (NOWHERE, "step", "step"): STEP,
            (NOWHERE, "threads", "other threads"): OTHERS,
            (NOWHERE, "unclear", "region not known"): UNCLEAR,
        }
        self.depth, self.calls, self.own, self.total = ([0] * len(self.keys) for _ in range(4))
        self.folded = 0
        self.tasks = np.array([track.kind == "async" for track in source.tracks], bool)
        self.which = which[np.lexsort((-slices.duration[which], slices.start[which]))]
        self.main = self._main(windows)

    def _main(self, windows: Indices) -> set[int]:
        """Return the tracks that windows divide: the followed threads, and their coroutines."""
        slices, which = self.source.slices, self.which
        tracks = set(followed_threads(self.source, self.chosen, windows)[0])
        threads = which[~self.tasks[slices.track[which]]]
        # of a trace, with windows on a row of their own
        if not tracks - set(np.flatnonzero(self.tasks).tolist()):
            busy = threads if len(threads) else self.chosen.ops
            spent = np.bincount(slices.track[busy], slices.duration[busy])
            tracks |= {int(spent.argmax())} if len(spent) else set()
        return tracks | {
            number
            for number, track in enumerate(self.source.tracks)
            if track.kind == "async" and (self.source.origin.kind != "spans" or track.name == OWN_TASKS)
        }

    def tree(self, folded: int, own_times: Times) -> RegionTree:
        """Sweep all rows, and return the tree."""
        windows = len(self.open) > 0
        if not windows:
            start, end = int(self.start.min()), int(self.end.max())
            self.open = Intervals.one(start, end)
        track = self.source.slices.track[self.which]
        rows = [(STEP, np.isin(track, sorted(self.main)))]
        rows += [(OTHERS, track == each) for each in sorted(set(distinct(track).tolist()) - self.main)]
        lanes: dict[int, Lane] = {}
        for root, own in rows:
            lanes |= self._row(root, self.which[own])
        self.total[STEP] = self.open.total
        self.calls[STEP] = sum(role is None for role in self.windows.values())
        self.own[STEP] = self.open.total - sum(self._of_main())
        self.total[OTHERS] = sum(
            total for (parent, _, _), total in zip(self.keys, self.total, strict=True) if parent == OTHERS
        )
        calls = calls_of(self.source, self.chosen, own_times, self._lanes(lanes), len(self.keys))
        nodes = [
            RegionNode(parent, name, kind, *numbers)
            for (parent, kind, name), *numbers in zip(
                self.keys, self.calls, self.total, self.own, calls.ops, calls.kernels, strict=True
            )
        ]
        return RegionTree(nodes, calls.names, folded + self.folded, windows)

    def _of_main(self) -> Iterator[int]:
        """Yield the self time of each region of the windows' thread."""
        root = [STEP, OTHERS, UNCLEAR]
        for number, (parent, _, _) in enumerate(self.keys):
            if number > UNCLEAR:
                root.append(root[parent])
                if root[parent] == STEP:
                    yield self.own[number]

    def _row(self, root: int, which: Indices) -> dict[int, Lane]:
        """Add the slices of one row. Return which node is innermost on its threads at each moment."""
        plain = [number for number, role in self.windows.items() if role is None]
        which = which[~np.isin(which, plain)]
        if root == STEP:  # of a window whose end is not known, it is not known how much is missing
            which = which[self.open.within(self.start[which], self.end[which] + 1) > 0]
        start, end = self.start[which], self.end[which]
        node_of = self._nodes(root, which.tolist(), start.tolist(), end.tolist())
        within = self.open
        if root != STEP:  # the step does not contain what other threads did before it
            since = self.since if self.windows else start
            within = Intervals.union(np.maximum(start, since), np.maximum(end, since))
        at, to, index = innermost(start, end)
        own = np.bincount(node_of[index], within.within(at, to), len(self.keys))
        self.own = [known + int(more) for known, more in zip(self.own, own.tolist(), strict=True)]
        for number in distinct(node_of).tolist():
            mine = node_of == number
            if number > UNCLEAR:
                when = Intervals.union(start[mine], end[mine])
                self.total[number] += int(within.within(when.start, when.end).sum())
        track = self.source.slices.track[which]
        lanes = {}
        coroutines = self.tasks[track] & ~np.isin(which, list(self.windows))
        unclear = Intervals.union(start[coroutines], end[coroutines])
        threads = set(distinct(track).tolist()) | (self.main if root == STEP else set())
        for thread in sorted(each for each in threads if not self.tasks[each]):
            on_thread = (track == thread) | (self.tasks[track] & ~coroutines)
            at, to, index = innermost(start[on_thread], end[on_thread])
            lane = Lane.of(at, to, node_of[on_thread][index], root)
            if root == STEP:
                lane = lane.where(within, BETWEEN)
            lanes[thread] = lane.during(unclear, UNCLEAR)
        return lanes

    def _nodes(self, root: int, which: list[int], start: list[int], end: list[int]) -> Indices:
        """Return the node of each slice: what it is, inside the innermost slice that contains it."""
        names, name = self.source.names, self.source.slices.name
        shown = [(self.windows.get(number) or names[name[number]])[:LONGEST_NAME] for number in which]
        node_of: list[int] = []
        for at, around in enumerate(containers(start, end, shown, [*map(self._task, which)])):
            parent = root if around == NOWHERE else node_of[around]
            kind = "role" if which[at] in self.windows else "region"
            node_of.append(self._node((parent, kind, shown[at])))
        return np.array(node_of, np.intp)

    def _task(self, number: int) -> int | None:
        """Return the coroutine of a slice; None: it is in none, or it is a window."""
        slices = self.source.slices
        if number in self.windows or not self.tasks[slices.track[number]]:
            return None
        return UNKNOWN_TASK if slices.task is None else int(slices.task[number])

    def _node(self, key: tuple[int, str, str]) -> int:
        number = self.keys.get(key)
        if number is None:
            if len(self.keys) >= MOST_NODES or self.depth[key[0]] >= MOST_DEPTH:
                self.folded += 1
                return key[0]
            number = self.keys[key] = len(self.keys)
            self.depth.append(self.depth[key[0]] + 1)
            for column in (self.calls, self.own, self.total):
                column.append(0)
        self.calls[number] += 1
        return number

    def _lanes(self, lanes: dict[int, Lane]) -> list[Lane]:
        """Return the lane of each track. A thread without regions runs nothing of a region, except
        for the threads of autograd: they work for the thread that waits for them.
        """
        slices, names = self.source.slices, self.source.names
        others = Lane.of(*innermost(np.zeros(0, np.int64), np.zeros(0, np.int64)), OTHERS)
        main = next((lanes[track] for track in sorted(self.main) if track in lanes), None)
        own = [lane for track, lane in lanes.items() if track not in self.main]
        backward = np.array([name.startswith("autograd::engine::evaluate_function") for name in names], bool)
        ops = self.chosen.ops
        autograd = set(distinct(slices.track[ops[backward[slices.name[ops]]]]).tolist())
        waited = main
        for lane in own if main is not None else ():
            waited = (waited or lane).during(lane.inside(OTHERS), UNCLEAR)
        return [
            lanes.get(track, (waited or others) if track in autograd else others)
            for track in range(len(self.source.tracks))
        ]
