"""Follow the chain of work and waits that made the step as long as it was: its critical path.

The walk begins at the end of the step, at the process that ended last, and goes back in time. Where
that process waited, the walk continues at the process that it waited for: in a collective, at the
rank that came last; in a window of engines, at the engine that was the last to finish; in a driver,
at the rank that was the last to finish in the same window; before a window, at the process whose
window ended last. Each moment of the step belongs to one segment of the path.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.meetings import Visit, meetings
from stepprof.analysis.report.nesting import Nest
from stepprof.analysis.report.processes import Process, unsure_ns
from stepprof.analysis.report.waiting import Waiting

MOST_SEGMENTS = 100_000
DRIVER = "driver"
"""The label of a driver, which has no rank."""
Stretch = tuple[int, int, "str | None", tuple[str, ...]]
"""Start, end, role and regions of the innermost window or region."""
LEAST_NS = 1000
"""A shorter remainder of a wait results from rounding."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the path: what one process did, from `start` to `end` [ns]."""

    process: str
    start: int
    end: int
    role: str | None
    region: tuple[str, ...]
    """The regions around it, the innermost one last."""
    kind: str
    """As in `stepprof.analysis.report.schema.PathSegment`."""


@dataclass(slots=True)
class Timeline:
    """What is known of one process over the step."""

    process: Process
    stretches: list[Stretch]
    """(start, end, role, regions) of the innermost window or region, in order, disjoint."""
    waits: list[tuple[int, int, str]]
    """(start, end, label of the awaited process), in order: in collectives, and where ranks leave a region together."""
    waiting: Intervals
    """While it waited in matched collectives, also for a rank on another clock."""
    communicating: Intervals
    """In collectives that were matched across ranks, while it computed nothing."""
    unmatched: Intervals
    """In communication that was not: waiting and transfer cannot be separated."""
    held: Intervals
    generating: Intervals
    nests: list[Nest] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wait_starts: list[int] = field(default_factory=list)
    window_ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window_ends = sorted(window.end for window in self.process.windows if window.ends)
        self.ends = [end for _, end, _, _ in self.stretches]
        self.wait_starts = [start for start, _, _ in self.waits]

    @property
    def label(self) -> str:
        """The label of its process."""
        return self.process.label

    def before(self, time: int) -> Stretch | None:
        """Return the stretch that contains the moment before a time, or the last one that ended before."""
        at = bisect_left(self.ends, time)
        if at < len(self.stretches) and self.stretches[at][0] < time:
            return self.stretches[at]
        return self.stretches[at - 1] if at else None

    def last_window_end(self, time: int) -> int | None:
        """Return when its last window before a time ended."""
        at = bisect_right(self.window_ends, time)
        return self.window_ends[at - 1] if at else None

    def wait_before(self, time: int) -> tuple[int, int, str] | None:
        """Return the wait that contains the moment before a time."""
        at = bisect_left(self.wait_starts, time) - 1
        return self.waits[at] if at >= 0 and self.waits[at][1] >= time - LEAST_NS else None

    def last_wait(self, start: int, time: int) -> int:
        """Return the end of the last wait between two times; `start` if there is none."""
        at = bisect_left(self.wait_starts, time) - 1
        return max(start, min(self.waits[at][1], time)) if at >= 0 else start


def timelines(
    processes: Sequence[Process], waits: Mapping[str, Waiting], short: Collection[str] = ()
) -> list[Timeline]:
    """Return the known times of each process; processes without any are omitted.

    Args:
        processes: of one island.
        waits: inside collectives, by label.
        short: labels of engines whose captures do not show when they finished.
    """
    nests = {process.label: _nests(process) for process in processes}
    stretches = {process.label: _stretches(process, nests[process.label]) for process in processes}
    drivers = [each for each in processes if each.origin.rank == DRIVER and _has_roles(stretches[each.label])]
    for process in processes:
        if _is_driven(process, stretches[process.label], drivers):
            stretches[process.label] = _of_its_own(process, stretches[process.label])
    met = meetings(_visits(processes, stretches, waits))
    made = []
    for process in processes:
        label = process.label
        generating = process.generating() if label not in short else EMPTY
        if stretches[label] or len(generating):
            links = _links(waits[label].links if label in waits else [], met.get(label, []))
            computing, communicating, _ = process.working()
            unmatched, waited = EMPTY, EMPTY
            if label in waits:
                unmatched, waited = waits[label].unmatched, waits[label].when | waits[label].for_profiler
            if any(digest.calls.left_out for digest in process.digests):
                unmatched |= communicating
            made.append(
                Timeline(
                    process,
                    stretches[label],
                    [link for link in links if 2 * computing.clip(*link[:2]).total < link[1] - link[0]],
                    waited - computing,
                    communicating - unmatched - waited - computing,
                    unmatched - computing,
                    process.held(),
                    generating,
                    nests[label],
                )
            )
    return made


def _is_driven(process: Process, stretches: Sequence[Stretch], drivers: Sequence[Process]) -> bool:
    """Return whether the windows of a process follow those of a driver: both have roles."""
    return (
        process.origin.rank != DRIVER
        and _has_roles(stretches)
        and any(unsure_ns(process, each) is not None for each in drivers)
    )


def _has_roles(stretches: Sequence[Stretch]) -> bool:
    return any(role is not None for _, _, role, _ in stretches)


def _of_its_own(process: Process, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Leave out the time in which a process that follows a driver waits for a call: it is in no
    region, computes nothing, and is no rank in a role.
    """
    computing = process.working()[0]
    is_rank = isinstance(process.origin.rank, int)
    return [
        each
        for each in stretches
        if each[3]
        or (is_rank and each[2] is not None)
        or 2 * computing.clip(*each[:2]).total >= each[1] - each[0]
    ]


def _links(
    recorded: Sequence[tuple[int, int, str]], met: Sequence[tuple[int, int, str]]
) -> list[tuple[int, int, str]]:
    """Return the waits in collectives, and those in regions as far as no collective shows what happened there."""
    known = Intervals.of((start, end) for start, end, _ in recorded)
    return sorted([*recorded, *(each for each in met if not len(known.clip(*each[:2])))])


def _visits(
    processes: Sequence[Process], stretches: Mapping[str, Sequence[Stretch]], waits: Mapping[str, Waiting]
) -> dict[tuple[object, ...], list[Visit]]:
    """Return the innermost stretches of each region of ranks. Where a matched collective is inside, it shows where they met."""
    visits: dict[tuple[object, ...], dict[str, Visit]] = {}
    for process in processes:
        if process.kind != "rank" or not isinstance(process.origin.rank, int):
            continue
        own = waits.get(process.label)
        matched = EMPTY if own is None else process.working()[1] - own.unmatched
        inside = matched.within(
            np.array([start for start, *_ in stretches[process.label]], np.int64),
            np.array([end for _, end, *_ in stretches[process.label]], np.int64),
        )
        for (start, end, role, region), nanoseconds in zip(
            stretches[process.label], inside.tolist(), strict=True
        ):
            of = visits.setdefault((role, region), {}).setdefault(process.label, Visit(process, [], []))
            of.times.append((start, end))
            of.matched.append(nanoseconds > 0)
    return {key: [*of.values()] for key, of in visits.items()}


def _nests(process: Process) -> list[Nest]:
    """Return the nesting from its spans, otherwise from its traces."""
    spans = [digest for digest in process.digests if digest.origin.kind == "spans"]
    return [digest.nest for digest in spans or process.digests if digest.nest is not None]


def _stretches(process: Process, nests: Sequence[Nest]) -> list[Stretch]:
    """Return the innermost window or region at each moment; without nesting, the windows."""
    found = []
    for nest in nests:
        paths = [nest.path(at) for at in range(len(nest.places))]
        found += [
            (start, end, nest.places[place].role, paths[place]) for start, end, place in nest.stretches()
        ]
    if not found:
        found = [(window.start, window.end, window.role, ()) for window in process.windows if window.ends]
    found.sort(key=lambda each: each[:2])
    disjoint: list[Stretch] = []
    for start, end, role, region in found:
        # captures may overlap by an error of rounding
        begin = max(start, disjoint[-1][1]) if disjoint else start
        if end > begin:
            disjoint.append((begin, end, role, region))
    return disjoint


def critical_path(
    known: Sequence[Timeline], start: int, end: int, engine_roles: frozenset[str | None]
) -> list[Segment]:
    """Return the path from the start to the end of the step, without a gap.

    Args:
        known: the processes of one island.
        start: of the step [ns].
        end: of the step [ns].
        engine_roles: roles in which a process waits for engines.
    """
    named = [each for each in known if each.stretches]
    if not named or end <= start:
        return []
    walk = _Walk(known, start, end, engine_roles)
    return walk.path(max(named, key=lambda each: (each.ends[-1], each.process.kind == "rank")))


class _Walk:
    def __init__(
        self, known: Sequence[Timeline], start: int, end: int, engine_roles: frozenset[str | None]
    ) -> None:
        self.by_label = {each.label: each for each in known}
        self.engines = [each for each in known if len(each.generating)]
        self.start = start
        self.time = end
        self.engine_roles = engine_roles
        self.found: list[Segment] = []
        self.returns: list[tuple[int, Timeline]] = []
        """Where the walk left a process that waited for another one: it is back there when that window began."""

    def path(self, at: Timeline) -> list[Segment]:
        still = 0
        while self.time > self.start and len(self.found) < MOST_SEGMENTS and still <= 2 * len(self.by_label):
            while self.returns and self.time <= self.returns[-1][0]:
                at = self.returns.pop()[1]
            before = self.time
            at = self._back(at)
            still = 0 if self.time < before else still + 1
        self.returns.clear()
        self._add(at, self.start, None, "outside")
        return self.found[::-1]

    def _add(self, at: Timeline, start: int, stretch: Stretch | None, kind: str) -> None:
        """Add what a process did from a time on, and go back to that time."""
        start = max(start, self.start)
        if self.returns:
            start = max(start, min(self.returns[-1][0], self.time))
        if start < self.time:
            role, region = (None, ()) if stretch is None else stretch[2:]
            self.found.append(Segment(at.label, start, self.time, role, region, kind))
            self.time = start

    def _back(self, at: Timeline) -> Timeline:
        """Go back by one segment; return the process at which the walk continues."""
        waited = at.wait_before(self.time)
        if waited is not None and waited[2] in self.by_label and waited[2] != at.label:
            other = self.by_label[waited[2]]
            reached = other.before(self.time)
            if reached is not None and reached[1] >= self.time - LEAST_NS:
                return self._enter(other)
        stretch = at.before(self.time)
        if stretch is None or stretch[1] < self.time:
            return self._outside(at, stretch)
        begin = max(at.last_wait(stretch[0], self.time), self.start)
        if begin >= self.time:  # a wait for a process that is not known here
            begin = max(stretch[0], self.start)
        worker = self._worker(at, stretch, begin)
        if worker is not None:
            return worker
        self._work(at, begin, stretch)
        return at

    def _enter(self, other: Timeline) -> Timeline:
        """Continue at the rank that came last. The path before this moment is that rank's own work."""
        stretch = other.before(self.time)
        begin = self.start if stretch is None else max(other.last_wait(stretch[0], self.time), self.start)
        if stretch is not None and begin < self.time:
            self._work(other, begin, stretch)
        return other

    def _work(self, at: Timeline, begin: int, stretch: Stretch) -> None:
        """Add a stretch, apart from the time in which the profiler held it up and that in collectives."""
        stop = self.time
        held = at.held.clip(begin, stop)
        unmatched = at.unmatched.clip(begin, stop) - held - at.waiting
        kinds = {
            "recording": held,
            "unmatched": unmatched,
            "waiting": at.waiting.clip(begin, stop) - held,
            "communication": at.communicating.clip(begin, stop) - held - unmatched,
        }
        marks = sorted(
            ((low, high, kind) for kind, when in kinds.items() for low, high in when.pairs()), reverse=True
        )
        for low, high, kind in marks:
            self._add(at, high, stretch, "work")
            self._add(at, low, stretch, kind)
        self._add(at, begin, stretch, "work")

    def _outside(self, at: Timeline, stretch: Stretch | None) -> Timeline:
        """Go back before the first window of a process: the window of another process may have to
        end first.
        """
        since = self.start if stretch is None else stretch[1]
        ended = [
            (last, other)
            for other in self.by_label.values()
            if other is not at and other.stretches and unsure_ns(at.process, other.process) is not None
            if (last := other.last_window_end(self.time)) is not None and last > since
        ]
        until, other = max(ended, key=itemgetter(0), default=(since, at))
        self._held(at, until)
        return other

    def _held(self, at: Timeline, since: int) -> None:
        for low, high in reversed(at.held.clip(since, self.time).pairs()):
            self._add(at, high, None, "outside")
            self._add(at, low, None, "recording")
        self._add(at, since, None, "outside")

    def _worker(self, at: Timeline, stretch: Stretch, begin: int) -> Timeline | None:
        """Return the process that this one waits for in its window, after adding what followed its end."""
        if stretch[2] in self.engine_roles and not len(at.generating):
            last, engine = self._last_engine(begin)
            if engine is not None:
                self._add(at, last, stretch, "handover")
                low = int(engine.generating.clip(begin, last).start[0])
                self._add(engine, low, (0, 0, stretch[2], stretch[3]), "engine")
                return at
        if isinstance(at.process.origin.rank, int):
            return None
        working = [
            (min(inside[1], self.time), other)
            for other in self.by_label.values()
            if other is not at and isinstance(other.process.origin.rank, int)
            if (inside := other.before(self.time)) is not None
            and inside[2] == stretch[2]
            and inside[1] > begin
        ]
        if not working or (self.returns and self.returns[-1][0] >= begin):
            return None
        last, worker = max(working, key=itemgetter(0))
        self._add(at, last, stretch, "handover")
        self.returns.append((begin, at))
        return worker

    def _last_engine(self, begin: int) -> tuple[int, Timeline | None]:
        """Return the engine that was the last to generate since a time, and when it ended."""
        found: tuple[int, Timeline | None] = (begin, None)
        for engine in self.engines:
            part = engine.generating.clip(begin, self.time)
            if len(part) and int(part.end[-1]) > found[0]:
                found = (int(part.end[-1]), engine)
        return found
