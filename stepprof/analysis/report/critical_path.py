"""Follow the chain of work and waits that made the step as long as it was: its critical path.

The walk begins at the end of the step, at the process that ended last, and goes back in time. Where
that process waited, the walk continues at the process that it waited for: in a collective, at the
rank that came last; in a driver, at the engine or the rank that was the last to finish; where a rank
began its work, at the driver that called it; before a window, at the process whose
window ended last. Each moment of the step belongs to one segment of the path.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from stepprof.analysis.report.driver_waits import COMPUTES, Served, served
from stepprof.analysis.report.processes import unsure_ns
from stepprof.analysis.report.timelines import DRIVER, LEAST_NS, Stretch, Timeline

MOST_SEGMENTS = 100_000


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
    if end <= start or not known:
        return []
    if not named:
        return _of_engines(known, start, end)
    walk = _Walk(known, start, end, engine_roles)
    return walk.path(max(named, key=lambda each: (each.ends[-1], each.process.kind == "rank")))


def _of_engines(known: Sequence[Timeline], start: int, end: int) -> list[Segment]:
    """Return the generation of the engine that finished last: no other process is known.

    Of a trace that stepprof did not record, the time without a forward step is apart.
    """
    last = max(known, key=lambda each: int(each.generating.end[-1]))
    when = last.generating.pairs()
    if last.process.kind != "trace":
        when, end = [(when[0][0], when[-1][1])], 0
    role, segments = last.process.origin.role, []
    for low, high in when:
        segments += [
            Segment(last.label, start, low, None, (), "outside"),
            Segment(last.label, low, high, role, (), "engine"),
        ]
        start = high
    segments.append(Segment(last.label, start, end, None, (), "outside"))
    return [each for each in segments if each.end > each.start]


class _Walk:
    def __init__(
        self, known: Sequence[Timeline], start: int, end: int, engine_roles: frozenset[str | None]
    ) -> None:
        self.by_label = {each.label: each for each in known}
        self.drivers = [each for each in known if each.stretches and each.process.origin.rank == DRIVER]
        self.served = {
            label: [wait for wait in waits if wait.end > wait.start]
            for label, waits in served(known, engine_roles).items()
        }
        self.start = start
        self.time = end
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
        wait = self._served(at, stretch, begin)
        if wait is not None:
            return self._follow(at, stretch, wait)
        self._work(at, begin, stretch)
        return at

    def _served(self, at: Timeline, stretch: Stretch, begin: int) -> Served | None:
        """Return the last wait for a worker that ended in a stretch."""
        waits = self.served.get(at.label, ())
        number = bisect_right(waits, self.time, key=itemgetter(0)) - 1
        if number < 0 or waits[number].end <= begin:
            return None
        return waits[number]

    def _follow(self, at: Timeline, stretch: Stretch, wait: Served) -> Timeline:
        """Continue at the worker that a process waited for, after adding what followed its end."""
        for low, high in reversed(at.computing.clip(wait.end, self.time).pairs()) if wait.own else ():
            self._add(at, high, stretch, "handover")
            self._work(at, low, stretch)
        if wait.own:
            self._add(at, wait.end, stretch, "handover")
        self._work(at, wait.end, stretch)
        worker = self.by_label[wait.label]
        if len(worker.generating):
            # another worker that finished first does not end the wait for this one; what the driver computed does
            begun = max(stretch[0], wait.since or stretch[0])
            generated = worker.generating.clip(begun, wait.end)
            if at.computing.clip(begun, wait.end).total > COMPUTES * (wait.end - begun):
                generated = worker.generating.clip(wait.start, wait.end)
            if len(generated):
                since = int(generated.start[0])
                self._add(worker, since, (0, 0, worker.process.origin.role, stretch[3]), "engine")
            else:
                self._work(at, wait.start, stretch)
            return at
        if wait.since is not None:
            self.returns.append((wait.since, at))
        return worker

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
        """Go back before the first window of a process: the driver has called it, or the window of another
        process had to end first.
        """
        since = self.start if stretch is None else stretch[1]
        caller = self._caller(at)
        if caller is not None:
            held = at.held.clip(since, self.time).pairs()
            if held and held[-1][1] >= self.time - LEAST_NS:  # the profiler started after the call
                self._add(at, held[-1][0], None, "recording")
                return at
            return caller
        ended = [
            (last, other)
            for other in self.by_label.values()
            if other is not at and other.stretches and unsure_ns(at.process, other.process) is not None
            if (last := other.last_window_end(self.time)) is not None and last > since
        ]
        until, other = max(ended, key=itemgetter(0), default=(since, at))
        self._held(at, until)
        return other

    def _caller(self, at: Timeline) -> Timeline | None:
        """Return the driver that is in a window when a rank begins its work."""
        for driver in self.drivers if at.is_rank else ():
            inside = driver.before(self.time)
            if (
                inside is not None
                and inside[1] >= self.time
                and unsure_ns(at.process, driver.process) is not None
            ):
                return driver
        return None

    def _held(self, at: Timeline, since: int) -> None:
        for low, high in reversed(at.held.clip(since, self.time).pairs()):
            self._add(at, high, None, "outside")
            self._add(at, low, None, "recording")
        self._add(at, since, None, "outside")
