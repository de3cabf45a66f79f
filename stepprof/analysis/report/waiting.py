"""Sum up the waits inside collectives, by process and phase, with the rank that caused them.

`stepprof.analysis.report.wait_attribution` computes the wait of each process in one collective.
`stepprof.analysis.report.profiler_waits` computes the part that the recording caused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import EMPTY, Intervals, Times
from stepprof.analysis.report.matching import Matching
from stepprof.analysis.report.profiler_waits import take_out_profiler
from stepprof.analysis.report.wait_attribution import UNKNOWN, settle
from stepprof.analysis.timeline.distinct import distinct

MOST_LINKS = 20_000
Phase = tuple["str | None", "str | None"]
"""A role and a region of it; the region is None where a call lies in none."""


@dataclass(slots=True)
class Waiting:
    """What one process spent in collectives."""

    when: Intervals = field(default_factory=lambda: EMPTY)
    """While it waited for another rank."""
    for_profiler: Intervals = field(default_factory=lambda: EMPTY)
    """While it waited because the profiler held another rank up for longer."""
    unmatched: Intervals = field(default_factory=lambda: EMPTY)
    """While it was in communication that could not be matched."""
    links: list[tuple[int, int, str]] = field(default_factory=list)
    """The longest waits, as (start, end, label of the rank that came last), in order."""


@dataclass(slots=True)
class PhaseWaits:
    """The matched collectives of one phase, by the process's label; nanoseconds.

    Time in which a process waited in two collectives counts once.
    """

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waited: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The wait for any other rank."""
    caused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The time that all others waited for this one."""
    straggler: str | None = None
    """The process that caused most."""
    for_straggler: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The time that each waited for the straggler."""


@dataclass(slots=True)
class Unmatched:
    """The communication of one phase that could not be matched."""

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    spent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By label, nanoseconds: waiting and transfer together."""
    recorded: set[int] = field(default_factory=set)
    """How many members of the groups were recorded; 0: not known."""
    members: set[int] = field(default_factory=set)
    """How many members the groups have; 0: not known."""


@dataclass(slots=True)
class Waits:
    """The waits by label and by phase."""

    by_process: dict[str, Waiting] = field(default_factory=lambda: defaultdict(Waiting))
    by_phase: dict[Phase, PhaseWaits] = field(default_factory=lambda: defaultdict(PhaseWaits))
    unmatched: dict[Phase, Unmatched] = field(default_factory=lambda: defaultdict(Unmatched))


def waits_in(
    labels: Sequence[str],
    matching: Matching,
    phases: Sequence[Sequence[Phase]],
    held: Sequence[Intervals],
    computing: Sequence[Intervals],
) -> Waits:
    """Sum up the waits, without the time in which the process computed meanwhile.

    Args:
        labels: names of the peers that were matched.
        matching: of their calls.
        phases: of each peer the phase of each of its calls.
        held: of each peer, when the profiler held it up.
        computing: of each peer, when it computed. Computation hides a call that was started early.
    """
    waits = Waits()
    numbers: dict[Phase, int] = {}
    numbered = [
        np.array([numbers.setdefault(phase, len(numbers)) for phase in each], np.int64) for each in phases
    ]
    by_number = list(numbers)
    settled = [settle(matched, matching) for matched in matching.matched]
    came_last = [each.last.copy() for each in settled]
    take_out_profiler(settled, held, matching)
    parts: list[list[_Part]] = [[] for _ in labels]
    for each, latest in zip(settled, came_last, strict=True):
        # the last index means an unknown member
        members = np.array([*each.matched.members, UNKNOWN], np.int64)
        for row, (at, rows) in enumerate(zip(each.matched.members, each.matched.rows, strict=True)):
            parts[at].append(
                (
                    numbered[at][rows],
                    each.start[row],
                    each.wait[row],
                    each.profiler[row],
                    members[each.last[row]],
                    members[latest[row]],
                )
            )
    caused = [
        _add(waits, label, part, computing=worked, labels=labels, by_number=by_number)
        for label, part, worked in zip(labels, parts, computing, strict=True)
    ]
    for phase in waits.by_phase.values():
        phase.straggler = max(phase.caused, key=lambda label: phase.caused[label], default=None)
    for label, pairs in zip(labels, caused, strict=True):
        for number, other, nanoseconds in pairs:
            phase = waits.by_phase[by_number[number]]
            if labels[other] == phase.straggler:
                phase.for_straggler[label] += nanoseconds
    _add_unmatched(waits, matching, labels, computing=computing, numbered=numbered, by_number=by_number)
    return waits


_Peers = npt.NDArray[np.int64]
_Part = tuple[npt.NDArray[np.int64], Times, Times, Times, _Peers, _Peers]
"""For some calls of a process: their phases, starts, waits, the part that the profiler caused, the
peers that caused the wait, and those that came last. These differ if the profiler held a peer up.
"""


def _add(
    waits: Waits,
    label: str,
    parts: Sequence[_Part],
    *,
    computing: Intervals,
    labels: Sequence[str],
    by_number: Sequence[Phase],
) -> list[tuple[int, int, int]]:
    """Add the waits of one process, and return (phase, peer, nanoseconds) for each peer that it
    waited for in each phase.
    """
    if not parts:
        return []
    phase, start, wait, profiler, other, latest = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    process = waits.by_process[label]
    process.links += _links(start, wait + profiler, latest, labels)
    process.when |= Intervals.union(start, start + wait)
    process.for_profiler |= Intervals.union(start + wait, start + wait + profiler)
    for number, calls in enumerate(np.bincount(phase, minlength=len(by_number)).tolist()):
        if calls:
            waits.by_phase[by_number[number]].calls[label] += calls
    for number, nanoseconds in _totals(phase, start, wait, computing):
        waits.by_phase[by_number[number]].waited[label] += nanoseconds
    known = other != UNKNOWN
    pairs = []
    pair = phase * len(labels) + other
    for key, nanoseconds in _totals(pair[known], start[known], wait[known], computing):
        number, peer = divmod(key, len(labels))
        waits.by_phase[by_number[number]].caused[labels[peer]] += nanoseconds
        pairs.append((number, peer, nanoseconds))
    return pairs


def _links(
    start: Times, wait: Times, other: npt.NDArray[np.int64], labels: Sequence[str]
) -> list[tuple[int, int, str]]:
    """Return the longest waits for a known rank."""
    which = np.flatnonzero((wait > 0) & (other != UNKNOWN))
    if len(which) > MOST_LINKS:
        which = which[np.argpartition(-wait[which], MOST_LINKS)[:MOST_LINKS]]
    which = which[np.argsort(start[which], kind="stable")]
    columns = start[which].tolist(), (start[which] + wait[which]).tolist(), other[which].tolist()
    return [(begin, end, labels[peer]) for begin, end, peer in zip(*columns, strict=True)]


def _totals(
    key: npt.NDArray[np.int64], start: Times, length: Times, computing: Intervals
) -> list[tuple[int, int]]:
    """Return for each key the nanoseconds that its intervals cover, without `computing`. Keys
    without an interval are left out.
    """
    real = length > 0
    key, start, length = key[real], start[real], length[real]
    if not len(key):
        return []
    keys, number = np.unique(key, return_inverse=True)
    low = int(start.min())
    width = int((start + length).max()) - low + 1
    if width.bit_length() + len(keys).bit_length() >= 63:  # times of a damaged file
        return []
    offset = number * width - low  # the intervals of each key are kept apart from those of the others
    merged = Intervals.union(start + offset, start + length + offset)
    number = merged.start // width
    back = low - number * width
    exposed = merged.end - merged.start - computing.within(merged.start + back, merged.end + back)
    totals = np.bincount(number, exposed, len(keys))
    return list(zip(keys.tolist(), totals.astype(np.int64).tolist(), strict=True))


def _add_unmatched(
    waits: Waits,
    matching: Matching,
    labels: Sequence[str],
    *,
    computing: Sequence[Intervals],
    numbered: Sequence[npt.NDArray[np.int64]],
    by_number: Sequence[Phase],
) -> None:
    for at, (label, columns, worked) in enumerate(zip(labels, matching.columns, computing, strict=True)):
        left = np.flatnonzero(matching.recorded[at] >= 0)
        if not len(left):
            continue
        process = waits.by_process[label]
        process.unmatched |= Intervals.union(
            columns.start[left], columns.start[left] + columns.duration[left]
        )
        for number in distinct(numbered[at][left]).tolist():
            rows = left[numbered[at][left] == number]
            phase = waits.unmatched[by_number[number]]
            phase.calls[label] += len(rows)
            inside = Intervals.union(columns.start[rows], columns.start[rows] + columns.duration[rows])
            phase.spent[label] += (inside - worked).total
            phase.recorded.update(distinct(matching.recorded[at][rows]).tolist())
            phase.members.update(distinct(matching.members[at][rows]).tolist())
