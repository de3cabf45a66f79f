"""Find regions that several ranks leave together: those that entered earlier may have waited for the last one.

Ranks meet in what no profiler records: a barrier of the operating system, a socket, an actor's call.
If ranks enter a region at different times and the first one leaves it as soon as the last one has entered, they have met.
If they all leave it at the same time but later, they may have met, or worked until a common time. What a region
contains, each of its calls contains: if the ranks leave another call apart, their common end is a coincidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.processes import Process, largest_unsure_ns

TOGETHER = 0.05
TOGETHER_NS = 2_000_000
MOST_APART_NS = 50_000_000
"""Ranks leave together if their ends differ by at most `TOGETHER_NS` plus this share of the wait, of which `MOST_APART_NS`
count at most. They leave as soon as the last one has entered, if its entry is at most that long before the first end. On a
busy machine one of them may leave late then, by `MOST_APART_NS` more at most.
"""
CLEAR = 5
"""A wait counts if it is at least this many times longer than the difference of the ends."""
MOST_CALLS = 5_000


class Visit(NamedTuple):
    """When a process was in a region, innermost."""

    process: Process
    times: list[tuple[int, int]]
    matched: list[bool]
    """Whether a collective inside, which shows where it met the others, was matched."""


class Missed(NamedTuple):
    """A process entered a region after others had left it together, and was in it for a small share of their time: if they worked
    until a common time, it would have worked until then too.
    """

    start: int
    after: int
    """How long before that the last of the others had left it [ns]."""


class CommonEnd(NamedTuple):
    """A process was in a region before the last one entered, and left it together with the others."""

    start: int
    end: int
    """When the last one entered."""
    gone: int
    """When that one had left, as far as clocks show it."""
    until: int
    """When the process left it."""
    last: str
    """The label of the last one to enter."""
    together: bool
    """All left at the same time, or as soon as the last one had entered. False: at about the same time."""
    met: bool
    """They left as soon as it had entered."""


def leaves_within(wait: Times | int) -> Times:
    """Return how long after the end of a wait a process goes on at most [ns]."""
    return np.asarray(TOGETHER_NS + np.minimum(TOGETHER * np.asarray(wait), MOST_APART_NS))


def common_ends(visits: dict[tuple[object, ...], list[Visit]]) -> dict[str, list[CommonEnd]]:
    """Return the common ends of each process, by label.

    Args:
        visits: of each region, those of all ranks that have it.
    """
    found: dict[str, list[CommonEnd]] = defaultdict(list)
    for of in visits.values():
        if are_comparable(of):
            error = largest_unsure_ns(of[0].process, [visit.process for visit in of[1:]])
            if error is not None:
                _add(found, of, error)
    return found


def missed_ends(visits: dict[tuple[object, ...], list[Visit]]) -> dict[str, list[Missed]]:
    """Return the regions of each process in which it may have missed a common time of the others, by label.

    Args:
        visits: of each region, those of all ranks that have it.
    """
    found: dict[str, list[Missed]] = defaultdict(list)
    for of in visits.values():
        if not are_comparable(of):
            continue
        start, end = bounds(of)
        length = end - start
        short = CLEAR * np.maximum(length, TOGETHER_NS) < length.max(axis=0)
        gone = np.where(short, 0, end).max(axis=0)
        apart = gone - np.where(short, gone, end).min(axis=0)
        late = short & (start > gone)
        missed = late.any(axis=0) & (late == short).all(axis=0) & (apart <= TOGETHER_NS)
        missed &= ~np.array([visit.matched for visit in of]).any(axis=0)
        for call in np.flatnonzero(missed).tolist():
            for row in np.flatnonzero(late[:, call]).tolist():
                begin = int(start[row, call])
                found[of[row].process.label].append(Missed(begin, begin - int(gone[call])))
    return found


def are_comparable(of: Sequence[Visit]) -> bool:
    """Return whether several ranks were in a region equally often."""
    return len(of) > 1 and len({len(visit.times) for visit in of}) == 1 and len(of[0].times) <= MOST_CALLS


def bounds(of: Sequence[Visit]) -> tuple[Times, Times]:
    """Return the begin and the end of each visit, one row for each process."""
    start = np.array([[start for start, _ in visit.times] for visit in of])
    return start, np.array([[end for _, end in visit.times] for visit in of])


def _add(found: dict[str, list[CommonEnd]], of: Sequence[Visit], error: int) -> None:
    start, end = bounds(of)
    last, differ = start.max(axis=0), np.ptp(end, axis=0)
    latest = start.argmax(axis=0)
    wait = last - start.min(axis=0)
    within = leaves_within(wait)
    released = (end.min(axis=0) - last <= within) & (differ <= within + MOST_APART_NS)
    apart = CLEAR * differ.max() > wait  # in another call
    together = (differ <= within) | released
    meet = (
        (wait >= CLEAR * np.maximum(differ, error)) & (wait >= CLEAR * TOGETHER_NS) & (last < end.min(axis=0))
    )
    meet &= ~apart | released
    meet &= ~np.array([visit.matched for visit in of]).any(axis=0)
    for call in np.flatnonzero(meet).tolist():
        for row, visit in enumerate(of):
            begin = int(start[row, call])
            if row != latest[call] and begin < last[call]:
                label = of[int(latest[call])].process.label
                found[visit.process.label].append(
                    CommonEnd(
                        begin,
                        int(last[call]),
                        int(end[latest[call], call]) + error,
                        int(end[row, call]),
                        label,
                        bool(together[call]),
                        bool(released[call]),
                    )
                )
