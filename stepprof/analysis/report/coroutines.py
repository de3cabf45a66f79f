"""Sum up the calls of each region in the coroutines of the windows' thread: how many were open at the same time, and for how long the last ones were."""

from __future__ import annotations

from statistics import median

import msgspec
import numpy as np

from stepprof.analysis.report.containment import NOWHERE, containers
from stepprof.analysis.report.intervals import Indices, Intervals, Moments
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.span_sources import OWN_TASKS

MOST_NAMES = 100
MOST_CALLS = 20_000
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


def concurrent_calls(source: Source, chosen: Chosen) -> list[Concurrent]:
    """Return the calls by region, as far as the source states the coroutine of each; only spans do."""
    slices = source.slices
    if slices.task is None or not len(chosen.regions):
        return []
    own = [number for number, track in enumerate(source.tracks) if track.kind == "async" and track.name == OWN_TASKS]  # fmt: skip
    which = chosen.regions[np.isin(slices.track[chosen.regions], own) & (slices.task[chosen.regions] >= 0)]
    if not 0 < len(which) <= MOST_CALLS:
        return []
    which = which[np.lexsort((-slices.duration[which], slices.start[which]))]
    start, end, task = slices.start[which], (slices.start + slices.duration)[which], slices.task[which]
    names = slices.name[which].tolist()
    around = containers(start.tolist(), end.tolist(), names, task.tolist())
    groups: dict[tuple[str, str | None], list[int]] = {}
    for at, (outer, role) in enumerate(zip(around, chosen.roles(which), strict=True)):
        if outer == NOWHERE or task[outer] != task[at]:
            groups.setdefault((source.names[names[at]], role), []).append(at)
    return [
        _summed(name, role, start[calls], end[calls], len(np.unique(task[calls])))
        for (name, role), calls in [*groups.items()][:MOST_NAMES]
    ]


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
