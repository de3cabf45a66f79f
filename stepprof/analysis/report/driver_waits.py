"""Find what drivers wait for: the engines and the ranks that work while they are in a window.

A window of a driver is about the ranks and the engines of its own role. It also waits for those of other roles
that finish within it, as a step window of a driver does that calls its ranks. While the driver itself computes, it does not wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import unsure_ns
from stepprof.analysis.report.timelines import DRIVER, LEAST_NS, Stretch, Timeline

MOST_AWAITED = 4
"""Maximum number of engines that a rank waits for in one window: the last ones to finish."""
COMPUTES = 0.1
"""A driver computes while it waits if it does so for this share of the time without a break."""


class Served(NamedTuple):
    """A driver waits for a worker: an engine or a rank."""

    end: int
    start: int
    done: int
    """When the worker finished: before `end` if the driver computed until then, and the wait has no length."""
    label: str
    own: bool
    """Whether the worker has the role of the driver's window."""
    since: int | None
    """Since when the work belongs to this wait; None: since a rank began."""


class _Work(NamedTuple):
    start: int
    end: int
    label: str
    until: int
    """The end of the driver's window or region."""
    streams: bool
    """Whether it has results before it ends: it generates."""
    role: str | None
    """The role of the worker."""


@dataclass(slots=True)
class _Worker:
    """When one engine or rank worked in one role."""

    each: Timeline
    role: str | None
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def generates(self) -> bool:
        """Whether it is an engine."""
        return len(self.each.generating) > 0

    def inside(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield its work between two times, as it was: it may have begun earlier and ended later."""
        for at in range(bisect_right(self.ends, start), bisect_left(self.starts, end)):
            yield self.starts[at], self.ends[at]


def served(known: Sequence[Timeline], engine_roles: frozenset[str | None]) -> dict[str, list[Served]]:
    """Return the waits of each driver, and of ranks for engines, in the order of their ends.

    Args:
        known: the processes of one clock.
        engine_roles: roles in which a process waits for engines.
    """
    engines = [
        _Worker(each, each.process.origin.role, each.generating.start.tolist(), each.generating.end.tolist())
        for each in known
        if len(each.generating)
    ]
    ranks = [worker for each in known if each.is_rank for worker in _roles_of(each)]
    found: dict[str, list[Served]] = {}
    for each in known:
        waits: list[Served] = []
        if not each.is_rank and each.stretches:
            workers = _comparable(each, [*engines, *ranks])
            for stretch in each.stretches:
                waits += _in_window(each, stretch, workers)
        elif engines and not len(each.generating):
            workers = _comparable(each, engines)
            for stretch in each.stretches:
                if stretch[2] in engine_roles:
                    own = [worker for worker in workers if worker.role == stretch[2]]
                    work = nlargest(MOST_AWAITED, _works(own, stretch), key=lambda one: one.end)
                    waits += _waits(each, work, own=True)
        if waits:
            found[each.label] = sorted(waits)
    return found


def _comparable(each: Timeline, workers: Sequence[_Worker]) -> list[_Worker]:
    known = {worker.each.label: worker.each for worker in workers if worker.each is not each}
    labels = {label for label, other in known.items() if unsure_ns(each.process, other.process) is not None}
    return [worker for worker in workers if worker.each.label in labels]


def _roles_of(each: Timeline) -> Iterator[_Worker]:
    """Yield when a rank worked, by role; adjacent regions are one piece of work."""
    by_role: dict[str | None, _Worker] = {}
    for start, end, role, _ in each.stretches:
        worker = by_role.setdefault(role, _Worker(each, role))
        if worker.ends and start - worker.ends[-1] < LEAST_NS:
            worker.ends[-1] = end
        else:
            worker.starts.append(start)
            worker.ends.append(end)
    for worker in by_role.values():
        around = [each.with_held(*times) for times in zip(worker.starts, worker.ends, strict=True)]
        worker.starts, worker.ends = [start for start, _ in around], [end for _, end in around]
        yield worker


def _in_window(each: Timeline, stretch: Stretch, workers: Sequence[_Worker]) -> Iterator[Served]:
    """Yield the waits of a driver in one window or region. Other processes without a number lead no ranks."""
    own = _works([worker for worker in workers if worker.role == stretch[2]], stretch)
    yield from _waits(each, own, own=True)
    if each.process.origin.rank != DRIVER:
        return
    covered = Intervals.of((work.start, work.end) for work in own)
    others = []
    for work in _works([worker for worker in workers if worker.role != stretch[2]], stretch, within=True):
        left = (Intervals.one(work.start, work.end) - covered).pairs()
        if left and left[-1][1] == work.end:  # it goes on when those of the role have finished
            others.append(work._replace(start=left[-1][0]))
    yield from _waits(each, others, own=False, shared=bool(own))


def _works(workers: Sequence[_Worker], stretch: Stretch, *, within: bool = False) -> list[_Work]:
    """Return the work of some workers in a stretch of a driver, of an engine as one piece.

    Args:
        workers: to choose from.
        stretch: of the driver.
        within: only work that ends in the stretch. The driver does not wait there for what goes on.
    """
    begin, end = stretch[:2]
    found = []
    for worker in workers:
        pieces = [*worker.inside(begin, end)]
        if within and pieces and pieces[-1][1] > end + LEAST_NS:
            pieces.pop()
            if worker.generates:  # the driver does not wait here for what it generates
                pieces = []
        if not pieces:
            continue
        if worker.generates:
            pieces = [(pieces[0][0], pieces[-1][1])]
        found += [
            _Work(max(low, begin), min(high, end), worker.each.label, end, worker.generates, worker.role)
            for low, high in pieces
        ]
    return [work for work in found if work.end > work.start]


def _waits(each: Timeline, works: Sequence[_Work], *, own: bool, shared: bool = False) -> Iterator[Served]:
    """Yield the waits for some work. Of what is done at the same time, the driver waits for one after the other.

    Args:
        each: the driver.
        works: of its workers.
        own: they have the role of its window.
        shared: it waits for others too in this window.
    """
    for group in _at_the_same_time(works):
        first = since = group[0].start
        done_by: dict[str | None, int] = {}
        for work in sorted(group, key=lambda work: work.end):
            # engines of one role work side by side; one of another role may need what they generate
            alone = max((end for role, end in done_by.items() if role != work.role), default=first)
            for start, end, done in _idle(each, since, work):
                begun = alone if own or work.streams else start if shared else None
                yield Served(end, start, done, work.label, own, begun)
                since = max(since, end) if end > start else since
            done_by[work.role] = work.end


def _at_the_same_time(works: Sequence[_Work]) -> Iterator[list[_Work]]:
    """Yield the groups of work that overlaps, directly or through other work."""
    group: list[_Work] = []
    reach = 0
    for work in sorted(works):
        if group and work.start > reach:
            yield group
            group = []
        reach = max(reach, work.end) if group else work.end
        group.append(work)
    if group:
        yield group


def _idle(each: Timeline, start: int, work: _Work) -> Iterator[tuple[int, int, int]]:
    """Yield when a process waited for some work, as (start, end, when that had finished).

    If it computed when the work ended, it did not wait for the end. It may have waited for the first results of an engine
    that still generated.
    """
    pieces = each.computing.clip(start, work.end).pairs() if work.end > start else []
    idle = start
    for low, high in pieces:
        if high - low >= COMPUTES * (work.end - start):
            idle = max(idle, work.start)
            if work.streams and low - idle >= LEAST_NS:
                yield idle, low, low
            begin, idle = low, high
    if idle == start or work.end - idle >= LEAST_NS:
        yield min(idle, work.end), work.end, work.end
        return
    after = each.computing.clip(begin, work.until).pairs()
    join = after[0][1] if after else work.end
    yield join, join, work.end
