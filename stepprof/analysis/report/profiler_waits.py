"""Separate the part of the waits in collectives that the recording caused.

The recording starts and stops the profiler, which holds a rank up. If that takes longer on one rank
than on others, the others wait for that rank in their next collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.collectives import synchronises
from stepprof.analysis.report.intervals import Intervals, Times
from stepprof.analysis.report.matching import Matching
from stepprof.analysis.report.wait_attribution import UNKNOWN, Settled

_LONG_AGO = -(2**62)


def take_out_profiler(settled: Sequence[Settled], held: Sequence[Intervals], matching: Matching) -> None:
    """Split each wait into the part that another rank caused and the part that the profiler caused.

    `early` is how much earlier each process would be without the profiler. A collective that
    synchronises makes it equal for all members. As a rule it differs only from a start or stop of
    the profiler to the next collective of all ranks, and other collectives are skipped.

    If a member was in a call that could not be matched meanwhile, it may have waited for the
    profiler there. Then nothing is taken out, and the straggler is unknown.

    Args:
        settled: all collectives; changed in place.
        held: when the profiler held each peer up.
        matching: the calls of the peers.
    """
    if not any(len(each) for each in held):
        return
    order = order_of(settled)
    gains = _gains(settled, held, order)
    calls = [(number, column) for number, each in enumerate(settled) for column in range(each.start.shape[1])]
    fresh = np.flatnonzero(np.concatenate([np.zeros(0, bool), *(each.any(axis=0) for each in gains)])[order])
    unmatched = [_unmatched(matching, at) for at in range(len(held))]
    peers = sorted({at for each in settled for at in each.matched.members})
    early = np.zeros(len(held), np.int64)
    counted = early.copy()
    since = ended = _LONG_AGO
    place = 0
    while place < len(order):
        if not np.ptp(early[peers]):
            following = int(np.searchsorted(fresh, place))
            if following == len(fresh):
                return
            place = int(fresh[following])
            since = _next_hold(held, {at: int(counted[at]) for at in peers}, ended, matching.error_ns)
        number, column = calls[order[place]]
        each, members = settled[number], np.array(settled[number].matched.members)
        early[members] += gains[number][:, column]
        counted[members] += gains[number][:, column]
        if np.ptp(early[members]):
            entries = zip(members.tolist(), each.start[:, column].tolist(), strict=True)
            met = any(_met(unmatched[at], since, time) for at, time in entries)
            (_leave_unknown if met else _take_out)(each, column, members, early)
        ended = int(each.end[:, column].min())
        place += 1


def _gains(settled: Sequence[Settled], held: Sequence[Intervals], order: npt.NDArray[np.intp]) -> list[Times]:
    """Return for each member of each collective how long the profiler held it up since its collective before."""
    place = np.empty(len(order), np.intp)
    place[order] = np.arange(len(order))
    gains = [np.zeros_like(each.start) for each in settled]
    first = np.cumsum([0, *(each.start.shape[1] for each in settled)])
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, each in enumerate(settled):
        for row, at in enumerate(each.matched.members):
            rows[at].append((number, row))
    for at, parts in rows.items():
        until = np.concatenate([_held_until(held[at], settled[number].start[row]) for number, row in parts])
        places = np.concatenate([place[first[number] : first[number + 1]] for number, _ in parts])
        by_place = np.argsort(places)
        gain = np.empty_like(until)
        gain[by_place] = np.diff(np.maximum.accumulate(until[by_place]), prepend=0)
        ends = np.cumsum([settled[number].start.shape[1] for number, _ in parts])
        for (number, row), values in zip(parts, np.split(gain, ends[:-1]), strict=True):
            gains[number][row] = values
    return gains


def _held_until(held: Intervals, times: Times) -> Times:
    """Return how long the profiler has held a process up before some times."""
    before = np.concatenate(([0], np.cumsum(held.end - held.start)))
    at = np.searchsorted(held.start, times, side="right")
    last = np.concatenate(([_LONG_AGO], held.end))[at]
    return np.asarray(before[at] - np.maximum(last - times, 0), np.int64)


def _next_hold(held: Sequence[Intervals], counted: dict[int, int], ended: int, error_ns: int | None) -> int:
    """Return the earliest time at which the profiler may next hold a process up, on any clock.

    Args:
        held: when the profiler held each process up.
        counted: for how long it has held up each process that has matched collectives.
        ended: when the collective before ended; earlier holds of other processes are over.
        error_ns: how far the clocks of two processes may differ; None: not known.
    """
    if error_ns is None:
        return _LONG_AGO
    starts = []
    for at, each in enumerate(held):
        if at in counted:
            following = np.searchsorted(np.cumsum(each.end - each.start), counted[at], side="right")
        else:
            following = np.searchsorted(each.start, ended - error_ns)
        starts += each.start[following : following + 1].tolist()
    return min(starts, default=_LONG_AGO) - error_ns


def _unmatched(matching: Matching, at: int) -> tuple[Times, Times]:
    """Return the calls of a peer that could not be matched.

    Returns:
        The start of each call, in order, and the latest end of all calls up to and including it.
    """
    columns = matching.columns[at]
    left = np.flatnonzero(matching.recorded[at] >= 0)
    left = left[np.argsort(columns.start[left], kind="stable")]
    begun = columns.start[left]
    return begun, np.maximum.accumulate(begun + columns.duration[left])


def _met(unmatched: tuple[Times, Times], since: int, until: int) -> bool:
    """Return whether a process was in a call that could not be matched, between two times."""
    begun, reach = unmatched
    before = int(np.searchsorted(begun, until))
    return before > 0 and int(reach[before - 1]) > since


def _leave_unknown(each: Settled, column: int, members: npt.NDArray[np.int64], early: Times) -> None:
    """Handle one collective whose members waited for another rank or for the profiler: it is not
    known which.
    """
    each.last = each.last.copy() if not each.last.flags.writeable else each.last
    each.last[:, column] = UNKNOWN
    if synchronises(each.matched.kind):
        early[members] = early[members].min()


def _take_out(each: Settled, column: int, members: npt.NDArray[np.int64], early: Times) -> None:
    """Handle one collective: compute what its members would have waited without the profiler."""
    entered, wait, last = each.entered[:, column], each.wait[:, column], each.last[:, column]
    would = entered - early[members]
    if synchronises(each.matched.kind):
        needed, needed_then = np.full(len(members), entered.max()), np.full(len(members), would.max())
        if wait.any():
            each.last = each.last.copy() if not each.last.flags.writeable else each.last
            # this rank did not wait for one that arrived before it, in any case
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


MOST_PASSES = 100
"""Each pass corrects one process. Only the calls of damaged traces contradict each other forever."""


def order_of(settled: Sequence[Settled]) -> npt.NDArray[np.intp]:
    """Return the numbers of all collectives in order; they are numbered by `Settled`, then by column.

    A process makes one call after another, and its own clock shows their order. The clocks of several
    hosts may differ by more than the time between two collectives, and threads leave a collective at
    different times. Then the ends of two collectives appear in the wrong order. So collectives are
    ordered by their ends, unless the calls of a process show another order.
    """
    end = np.concatenate([np.zeros(0, np.int64), *(each.end.max(axis=0) for each in settled)])
    processes = _calls_by_process(settled)
    key = end.copy()
    place = np.empty(len(end), np.intp)
    for _ in range(MOST_PASSES):
        order = np.lexsort((end, key))
        place[order] = np.arange(len(order))
        changed = False
        for number, ended in processes:
            latest = np.maximum.accumulate(place[number])[ended - 1]
            wrong = (ended > 0) & (latest > place[number])
            if wrong.any():
                key[number[wrong]] = np.maximum(key[number[wrong]], key[order[latest[wrong]]] + 1)
                changed = True
        if not changed:
            break
    return order


def _calls_by_process(
    settled: Sequence[Settled],
) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Return the collectives of each process by their ends on its clock.

    The second array states how many of these had ended before each one began.
    """
    parts: dict[int, list[tuple[npt.NDArray[np.intp], Times, Times]]] = defaultdict(list)
    first = 0
    for each in settled:
        number = np.arange(first, first + each.start.shape[1])
        first += len(number)
        for row, at in enumerate(each.matched.members):
            parts[at].append((number, each.start[row], each.end[row]))
    found = []
    for columns in parts.values():
        number, start, end = (np.concatenate(column) for column in zip(*columns, strict=True))
        by_end = np.lexsort((start, end))
        ended = np.searchsorted(end[by_end], start[by_end], side="right")
        found.append((number[by_end], np.minimum(ended, np.arange(len(ended)))))
    return found
