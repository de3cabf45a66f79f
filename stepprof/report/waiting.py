"""Who waited for whom inside collectives, how long, and in which region.

In a collective that synchronises, no rank leaves before the last one has entered. So a rank waits from its own entry until the last one's, and two measures bound that: by entries, which is only as
right as the clocks, and by durations (what its call took longer than the shortest one), which needs no clock but takes it that all leave together, as they do on devices and not where threads have to be
scheduled. A wait is the smaller of the two, and by entries alone among the threads of one machine. With a root (broadcast, reduce, gather, scatter) a rank waits for the last one that entered before it left.

What a rank came later because the profiler started or stopped on it for longer than on the others is taken out: that is the recording's doing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepprof.report.collectives import synchronises
from stepprof.report.intervals import EMPTY, Intervals, Times
from stepprof.report.matching import Matched, Matching

__all__ = ["Phase", "PhaseWaits", "Unmatched", "Waiting", "Waits", "waits_in"]

UNKNOWN = -1
"""In place of a member: it is not known which."""
JITTER, JITTER_NS = 0.05, 50_000
"""By how much of a transfer, and by how many nanoseconds, two transfers of one collective differ: 33 us of 355 us were seen of gloo's broadcast (torch 2.13)."""

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


@dataclass(slots=True)
class PhaseWaits:
    """The matched collectives of one phase, by the process's label; nanoseconds. What a process waited in two at once counts once."""

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waited: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """For any other rank."""
    caused: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """What all others waited for this one."""
    straggler: str | None = None
    """The one that caused most."""
    for_straggler: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How long each waited for the straggler."""


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
    """All of it, by label and by phase."""

    by_process: dict[str, Waiting] = field(default_factory=lambda: defaultdict(Waiting))
    by_phase: dict[Phase, PhaseWaits] = field(default_factory=lambda: defaultdict(PhaseWaits))
    unmatched: dict[Phase, Unmatched] = field(default_factory=lambda: defaultdict(Unmatched))


@dataclass(slots=True)
class _Settled:
    """The collectives of one `Matched`: a row per member, a column per collective; nanoseconds."""

    matched: Matched
    start: Times
    end: Times
    entered: Times
    """When each entered, as far as it can be compared: by the clock, or relative to the end of the call where clocks do not tell."""
    wait: Times
    """For another rank; without what the profiler caused, once that is taken out."""
    profiler: Times
    """What the profiler caused of the wait."""
    last: npt.NDArray[np.intp]
    """Which member each waited for; `UNKNOWN`: not known."""


def waits_in(
    labels: Sequence[str],
    matching: Matching,
    phases: Sequence[Sequence[Phase]],
    held: Sequence[Intervals],
    computing: Sequence[Intervals],
) -> Waits:
    """Add up what was waited, less the moments in which the process computed meanwhile.

    Args:
        labels: of the peers that were matched.
        matching: of their calls.
        phases: of each peer the phase of each of its calls.
        held: of each peer, when the profiler held it up.
        computing: of each peer, when it computed: a call that was begun early hides behind that.
    """
    waits = Waits()
    numbers: dict[Phase, int] = {}
    numbered = [
        np.array([numbers.setdefault(phase, len(numbers)) for phase in each], np.int64) for each in phases
    ]
    by_number = list(numbers)
    settled = [_settled(matched, matching) for matched in matching.matched]
    _take_out_profiler(settled, held)
    parts: list[list[_Part]] = [[] for _ in labels]
    for each in settled:
        members = np.array(
            [*each.matched.members, UNKNOWN], np.int64
        )  # the last one stands for an unknown member
        for row, (at, rows) in enumerate(zip(each.matched.members, each.matched.rows, strict=True)):
            parts[at].append(
                (
                    numbered[at][rows],
                    each.start[row],
                    each.wait[row],
                    each.profiler[row],
                    members[each.last[row]],
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


def _settled(matched: Matched, matching: Matching) -> _Settled:
    """Who waited how long, and for whom."""
    rows_of = list(zip(matched.members, matched.rows, strict=True))
    start = np.stack([matching.columns[at].start[rows] for at, rows in rows_of])
    took = np.stack([matching.columns[at].duration[rows] for at, rows in rows_of])
    longer = took - took.min(axis=0)
    error = matched.error_ns
    if synchronises(matched.kind):
        # without exact clocks: all leave together, so that who took least entered last
        entered = -took if error is None or error else start
        if error is None:
            wait = longer
        else:
            by_entry = np.minimum(start.max(axis=0) - start + error, took)
            wait = by_entry if matched.on_host and not error else np.minimum(longer, by_entry)
        last = np.broadcast_to(entered.argmax(axis=0), wait.shape)
    else:
        entered = start
        last = _last_before(start, start + took + (error or 0))
        entry = np.take_along_axis(start, last, axis=0)
        wait = np.maximum(np.minimum(longer, entry + (error or 0) - start), 0)
        # it may have needed one that entered before, and left when that was transferred: for as long as the shortest call about
        apart = took.min(axis=0) + (took.min(axis=0) * JITTER).astype(np.int64) + JITTER_NS + (error or 0)
        before = np.take_along_axis(start, _last_before(start, entry - 1), axis=0)
        last = np.where(entry - before > apart, last, UNKNOWN)
    return _Settled(matched, start, start + took, entered, wait, np.zeros_like(wait), last)


def _last_before(start: Times, end: Times) -> npt.NDArray[np.intp]:
    """Of each member and collective, which member was the last to enter before this one left."""
    order = np.argsort(start, axis=0, kind="stable")
    ordered = np.take_along_axis(start, order, axis=0)
    members, count = start.shape
    low = int(ordered.min())
    width = int(end.max()) - low + 1
    if width.bit_length() + count.bit_length() >= 63:  # times of a damaged file
        return np.broadcast_to(np.arange(members)[:, None], start.shape)
    offsets = np.arange(count, dtype=np.int64) * width - low
    keys = (ordered + offsets).T.ravel()  # sorted: collective by collective, by entry
    entered = np.searchsorted(keys, (end + offsets).T.ravel(), side="right").reshape(count, members).T
    place = np.maximum(entered - np.arange(count) * members - 1, 0)
    return np.take_along_axis(order, place, axis=0)


class _Running:
    """How long the profiler has held a process up until a time."""

    def __init__(self, held: Intervals) -> None:
        self._held = held
        self._before = np.concatenate(([0], np.cumsum(held.end - held.start)))

    def until(self, time: int) -> int:
        """Nanoseconds before a time."""
        at = int(np.searchsorted(self._held.start, time, side="right"))
        if not at:
            return 0
        return int(self._before[at]) - max(int(self._held.end[at - 1]) - time, 0)


def _take_out_profiler(settled: Sequence[_Settled], held: Sequence[Intervals]) -> None:
    """Split the waits into what another rank caused and what the profiler did, which held that rank up for longer.

    `early` is how much earlier each process would be without the holds of the profiler; after a collective that synchronises it is the same for all members. Calls are gone through in the order in which
    they end, only while `early` differs: as a rule from a start or a stop of the profiler to the next collective of all ranks.
    """
    calls = [(each, column) for each in settled for column in range(each.start.shape[1])]
    holds = np.sort(np.concatenate([np.zeros(0, np.int64), *(each.start for each in held)]))
    if not calls or not len(holds):
        return
    ends = np.concatenate([each.end.max(axis=0) for each in settled])
    entries = np.concatenate([each.start.max(axis=0) for each in settled])
    order = np.argsort(ends, kind="stable")
    entries = np.maximum.accumulate(entries[order])
    running = [_Running(each) for each in held]
    peers = sorted({at for each in settled for at in each.matched.members})
    early = np.zeros(len(held), np.int64)
    counted = np.zeros(len(held), np.int64)
    place = 0
    while place < len(order):
        each, column = calls[order[place]]
        members = np.array(each.matched.members)
        now = np.array(
            [
                running[at].until(time)
                for at, time in zip(members.tolist(), each.start[:, column].tolist(), strict=True)
            ]
        )
        early[members] += np.maximum(now - counted[members], 0)
        counted[members] = np.maximum(now, counted[members])
        _take_out(each, column, members, early)
        place += 1
        if not np.ptp(early[peers]) and place < len(order):
            # until the profiler holds a process up again, nothing differs
            following = np.searchsorted(holds, ends[order[place - 1]], side="right")
            if following == len(holds) and all(running[at].until(2**62) == counted[at] for at in peers):
                return
            if following < len(holds) and all(
                running[at].until(int(holds[following]) - 1) == counted[at] for at in peers
            ):
                place = max(place, int(np.searchsorted(entries, holds[following])))


def _take_out(each: _Settled, column: int, members: npt.NDArray[np.int64], early: Times) -> None:
    """One collective: what its members would have waited had each entered as much earlier as it would be."""
    entered, wait, last = each.entered[:, column], each.wait[:, column], each.last[:, column]
    would = entered - early[members]
    if synchronises(each.matched.kind):
        needed, needed_then = np.full(len(members), entered.max()), np.full(len(members), would.max())
        if wait.any():
            each.last = each.last.copy() if not each.last.flags.writeable else each.last
            # a rank that was there before this one is not whom it waited for, whatever would have been
            latest = would.argmax()
            each.last[:, column] = np.where(entered[latest] > entered, latest, UNKNOWN)
    else:
        known = last != UNKNOWN
        needed = np.where(known, np.maximum(entered, entered[last]), entered)
        needed_then = np.where(known, np.maximum(would, would[last]), would)
    without = np.where((needed > entered) | (needed_then > would), needed_then - would, wait)
    kept = np.clip(without, 0, wait)
    each.wait[:, column], each.profiler[:, column] = kept, wait - kept
    early[members] = needed - needed_then


_Part = tuple[npt.NDArray[np.int64], Times, Times, Times, npt.NDArray[np.int64]]
"""Of some calls of a process: their phases, starts, waits, what the profiler caused, and for which peers it waited."""


def _add(
    waits: Waits,
    label: str,
    parts: Sequence[_Part],
    *,
    computing: Intervals,
    labels: Sequence[str],
    by_number: Sequence[Phase],
) -> list[tuple[int, int, int]]:
    """Add what one process waited. Returns (phase, peer, nanoseconds) for each that it waited for in each phase."""
    if not parts:
        return []
    phase, start, wait, profiler, other = (np.concatenate(column) for column in zip(*parts, strict=True))
    process = waits.by_process[label]
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


def _totals(
    key: npt.NDArray[np.int64], start: Times, length: Times, computing: Intervals
) -> list[tuple[int, int]]:
    """For each key the nanoseconds that any of its stretches covers, without those of `computing`; keys without any stretch are left out."""
    real = length > 0
    key, start, length = key[real], start[real], length[real]
    if not len(key):
        return []
    keys, number = np.unique(key, return_inverse=True)
    low = int(start.min())
    width = int((start + length).max()) - low + 1
    if width.bit_length() + len(keys).bit_length() >= 63:  # times of a damaged file
        return []
    offset = number * width - low  # the stretches of each key lie apart from those of the others
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
        for number in np.unique(numbered[at][left]).tolist():
            rows = left[numbered[at][left] == number]
            phase = waits.unmatched[by_number[number]]
            phase.calls[label] += len(rows)
            inside = Intervals.union(columns.start[rows], columns.start[rows] + columns.duration[rows])
            phase.spent[label] += (inside - worked).total
            phase.recorded.update(np.unique(matching.recorded[at][rows]).tolist())
            phase.members.update(np.unique(matching.members[at][rows]).tolist())
