"""What of the waits in collectives the recording caused: it started or stopped the profiler on a rank for longer than on others, and that rank came later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.collectives import synchronises
from stepprof.analysis.report.intervals import Intervals, Times
from stepprof.analysis.report.matching import Matching
from stepprof.analysis.report.wait_attribution import UNKNOWN, Settled

__all__ = ["take_out_profiler"]


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


def _unmatched(matching: Matching, at: int) -> tuple[Times, Times]:
    """Return when the calls of a peer that could not be matched began, and for each the latest end so far."""
    columns = matching.columns[at]
    left = np.flatnonzero(matching.recorded[at] >= 0)
    left = left[np.argsort(columns.start[left], kind="stable")]
    begun = columns.start[left]
    return begun, np.maximum.accumulate(begun + columns.duration[left])


def take_out_profiler(settled: Sequence[Settled], held: Sequence[Intervals], matching: Matching) -> None:
    """Split the waits into what another rank caused and what the profiler did, which held that rank up for longer.

    `early` is how much earlier each process would be without the holds of the profiler; after a collective that synchronises it is the same for all members. Calls are gone through in the order in which
    they end, only while `early` differs: as a rule from a start or a stop of the profiler to the next collective of all ranks.

    Where a member was in a call that could not be matched meanwhile, it may have waited for the profiler there. So nothing is taken out then, and the straggler is unknown.
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
    unmatched = [_unmatched(matching, at) for at in range(len(held))]
    peers = sorted({at for each in settled for at in each.matched.members})
    early = np.zeros(len(held), np.int64)
    counted = np.zeros(len(held), np.int64)
    since = int(holds[0])
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
        if np.ptp(early[members]) and any(
            _met(unmatched[at], since, time)
            for at, time in zip(members.tolist(), each.start[:, column].tolist(), strict=True)
        ):
            _leave_unknown(each, column, members, early)
        else:
            _take_out(each, column, members, early)
        place += 1
        if not np.ptp(early[peers]):
            end = int(each.end[:, column].max())
            since = max(end, int(holds[min(int(np.searchsorted(holds, end)), len(holds) - 1)]))
        if not np.ptp(early[peers]) and place < len(order):
            # until the profiler holds a process up again, nothing differs
            following = np.searchsorted(holds, ends[order[place - 1]], side="right")
            if following == len(holds) and all(running[at].until(2**62) == counted[at] for at in peers):
                return
            if following < len(holds) and all(
                running[at].until(int(holds[following]) - 1) == counted[at] for at in peers
            ):
                place = max(place, int(np.searchsorted(entries, holds[following])))


def _met(unmatched: tuple[Times, Times], since: int, until: int) -> bool:
    """Whether a process was in a call that could not be matched, between two times."""
    begun, reach = unmatched
    before = int(np.searchsorted(begun, until))
    return before > 0 and int(reach[before - 1]) > since


def _leave_unknown(each: Settled, column: int, members: npt.NDArray[np.int64], early: Times) -> None:
    """One collective: its members waited, for another rank or for the profiler."""
    each.last = each.last.copy() if not each.last.flags.writeable else each.last
    each.last[:, column] = UNKNOWN
    if synchronises(each.matched.kind):
        early[members] = early[members].min()


def _take_out(each: Settled, column: int, members: npt.NDArray[np.int64], early: Times) -> None:
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
