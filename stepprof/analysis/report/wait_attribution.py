"""Compute how long each member of a matched collective waited in it, and for which rank.

In a collective that synchronises, no rank leaves before the last one has entered. So a rank waits
from its own entry until the last entry. Two measures bound the wait. Entries depend on the clocks.
Durations (how much longer than the shortest call) need no clock, but assume that all ranks leave
together: devices do, threads have to be scheduled.

A wait is the smaller of the two; among the threads of one machine only entries count.

With a root (broadcast, reduce, gather, scatter) a rank waits for the last one that entered before
it left. That rank is named only if it entered so much later than all others that none of these can
be the one that was needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.collectives import synchronises
from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.matching import Matched, Matching

UNKNOWN = -1
"""In place of a member: not known."""
JITTER, JITTER_NS = 0.05, 50_000
"""The difference between two transfers of one collective on a device: a share of the transfer plus
nanoseconds.
"""
THREAD_NS = 80_000_000
"""The same difference where threads of the CPU transfer: on a busy machine a thread continues late.

Of 2,400 calls of gloo's broadcast among 4 and 6 processes on two processors, the latest was 76 ms
late (torch 2.13).
"""


@dataclass(slots=True)
class Settled:
    """The collectives of one `Matched`: a row per member, a column per collective; nanoseconds."""

    matched: Matched
    start: Times
    end: Times
    entered: Times
    """The entry of each, as far as it can be compared: by the clock, or relative to the end of the
    call if clocks do not show it.
    """
    wait: Times
    """The wait for another rank. The part that the profiler caused is subtracted later."""
    profiler: Times
    """The part of the wait that the profiler caused."""
    last: npt.NDArray[np.intp]
    """The member that each waited for; `UNKNOWN`: not known."""


def settle(matched: Matched, matching: Matching) -> Settled:
    """Compute how long each member waited, and for which one."""
    rows_of = list(zip(matched.members, matched.rows, strict=True))
    start = np.stack([matching.columns[at].start[rows] for at, rows in rows_of])
    took = np.stack([matching.columns[at].duration[rows] for at, rows in rows_of])
    longer = took - took.min(axis=0)
    error = matched.error_ns
    if synchronises(matched.kind):
        entered = _entered(matched, start, took)
        if error is None:
            wait = longer
        else:
            by_entry = np.minimum(start.max(axis=0) - start + error, took)
            wait = by_entry if matched.on_host and not error else np.minimum(longer, by_entry)
        latest = entered.argmax(axis=0)
        np.put_along_axis(wait, latest[None], 0, axis=0)
        last = np.broadcast_to(latest, wait.shape)
    else:
        entered = start
        last = _last_before(start, start + took + (error or 0))
        entry = np.take_along_axis(start, last, axis=0)
        wait = np.maximum(np.minimum(longer, entry + (error or 0) - start), 0)
        before = np.take_along_axis(start, _last_before(start, entry - 1), axis=0)
        last = np.where(entry - before > _apart(matched, took.min(axis=0)), last, UNKNOWN)
    return Settled(matched, start, start + took, entered, wait, np.zeros_like(wait), last)


def _entered(matched: Matched, start: Times, took: Times) -> Times:
    """Return when each member entered a collective that synchronises.

    If the clock is exact, it counts. Otherwise all leave together, so the member with the shortest
    call entered last. Threads do not leave together: the clock, within its error, bounds what
    durations show.
    """
    error = matched.error_ns
    if error == 0:
        return start
    if error is None or not matched.on_host:
        return -took
    together = (start + took).min(axis=0)
    entered: Times = np.clip(together - took, start - 2 * error, start + 2 * error)
    return entered


def _apart(matched: Matched, shortest: Times) -> Times:
    """Return the longest time from the entry that a rank waited for to its own leave.

    It is about the length of the shortest call, plus twice the error of the clocks.
    """
    late = THREAD_NS if matched.on_host else JITTER_NS
    return shortest + (shortest * JITTER).astype(np.int64) + late + 2 * (matched.error_ns or 0)


def _last_before(start: Times, end: Times) -> npt.NDArray[np.intp]:
    """Return for each member and collective the last member to enter before this one left."""
    order = np.argsort(start, axis=0, kind="stable")
    ordered = np.take_along_axis(start, order, axis=0)
    members, count = start.shape
    low = int(ordered.min())
    width = int(end.max()) - low + 1
    if width.bit_length() + count.bit_length() >= 63:  # times of a damaged file may be this far apart
        return np.broadcast_to(np.arange(members)[:, None], start.shape)
    offsets = np.arange(count, dtype=np.int64) * width - low
    keys = (ordered + offsets).T.ravel()  # sorted: collective by collective, by entry
    entered = np.searchsorted(keys, (end + offsets).T.ravel(), side="right").reshape(count, members).T
    place = np.maximum(entered - np.arange(count) * members - 1, 0)
    return np.take_along_axis(order, place, axis=0)
