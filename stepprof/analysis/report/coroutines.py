"""Sum up the calls of each region in the coroutines of the windows' thread: how many were open at the same time, and for how long the last ones were."""

from __future__ import annotations

from statistics import median

import msgspec
import numpy as np

from stepprof.analysis.report.containment import NOWHERE, containers
from stepprof.analysis.report.intervals import Indices, Intervals, Moments
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.span_sources import OWN_TASKS

MOST_NAMES = 100
MOST_CALLS = 20_000
MOST_DEEP = 32
"""More coroutines than this that are open at the same time are concurrent."""
STRETCHES = 64
LAST = 0.05
"""Share of the calls that are the last ones; at least one is."""


class Concurrent(msgspec.Struct, frozen=True):
    """The calls of one region that are inside no other region of their coroutine."""

    name: str
    role: str | None
    calls: int
    tasks: int
    """In how many coroutines."""
    peak: int
    """How many were open at the same time, at most."""
    longest: float
    """Seconds of the longest call."""
    median: float
    when: Moments
    """Packed intervals in which at least one was open."""
    last: Moments
    """The packed interval in which only the last ones were open."""


def sequential_calls(source: Source, chosen: Chosen) -> Indices:
    """Return the regions of the coroutines that the thread awaits one after the other.

    Those are coroutines of which no region overlaps with one of the same name in another coroutine, and all others
    are inside their regions or around them.
    """
    which = _calls(source, chosen)
    slices = source.slices
    if slices.task is None:
        return which
    keys = zip(slices.name[which].tolist(), chosen.roles(which), strict=True)
    ends, tasks = (slices.start + slices.duration)[which].tolist(), slices.task[which].tolist()
    concurrent: set[int] = set()
    opened: list[tuple[int, int, object]] = []
    for start, end, task, key in zip(slices.start[which].tolist(), ends, tasks, keys, strict=True):
        opened = [each for each in opened if each[0] > start]
        others = [each for each in opened if each[1] != task]
        for until, other, name in others:
            if end > until or name == key or len(others) > MOST_DEEP:
                concurrent |= {task, other}
        opened.append((end, task, key))
        if len(opened) > 2 * MOST_DEEP:  # they are concurrent: what matters is that each is known to be
            concurrent |= {each[1] for each in opened}
            opened = opened[-MOST_DEEP:]
    return which[[task not in concurrent for task in tasks]] if len(which) else which


def concurrent_calls(source: Source, chosen: Chosen) -> list[Concurrent]:
    """Return the calls by region, as far as the source states the coroutine of each; only spans do."""
    slices = source.slices
    which = _calls(source, chosen)
    if slices.task is None or not len(which):
        return []
    start, end, task = slices.start[which], (slices.start + slices.duration)[which], slices.task[which]
    names = slices.name[which].tolist()
    around = containers(start.tolist(), end.tolist(), names, task.tolist())
    groups: dict[tuple[str, str | None], list[int]] = {}
    for at, (outer, role) in enumerate(zip(around, chosen.roles(which), strict=True)):
        if outer == NOWHERE or task[outer] != task[at]:
            groups.setdefault((source.names[names[at]], role), []).append(at)
    return [
        _summed(name, role, start[calls], end[calls], len(distinct(task[calls])))
        for (name, role), calls in [*groups.items()][:MOST_NAMES]
    ]


def _calls(source: Source, chosen: Chosen) -> Indices:
    """Return the regions of coroutines of the windows' thread, in order; empty: the source does not state them, or too many."""
    slices = source.slices
    if slices.task is None or not len(chosen.regions):
        return chosen.regions[:0]
    own = [number for number, track in enumerate(source.tracks) if track.kind == "async" and track.name == OWN_TASKS]  # fmt: skip
    which = chosen.regions[np.isin(slices.track[chosen.regions], own) & (slices.task[chosen.regions] >= 0)]
    if len(which) > MOST_CALLS:
        return which[:0]
    return which[np.lexsort((-slices.duration[which], slices.start[which]))]


def _summed(name: str, role: str | None, start: Indices, end: Indices, tasks: int) -> Concurrent:
    opened = np.sort(start)
    closed = np.sort(end)
    # of a call that ends when another one begins, the end comes first
    peak = int((np.arange(1, len(opened) + 1) - np.searchsorted(closed, opened, "right")).max())
    left = max(1, int(LAST * peak))
    begin = max(int(closed[-left - 1]), int(opened[-1])) if len(closed) > left else int(opened[-1])
    lengths = (end - start) / 1e9
    when = Intervals.union(start, end)
    last = Intervals.one(min(begin, int(closed[-1])), int(closed[-1]))
    return Concurrent(
        name,
        role,
        len(start),
        tasks,
        peak,
        float(lengths.max()),
        median(lengths.tolist()),
        when.coarse(STRETCHES)[0].pack(),
        last.pack(),
    )
