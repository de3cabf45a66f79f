"""Find by samples for which rank the others waited in a region that all left together.

Without a trace, no collective is known. But samples show which ranks waited in one, and which rank still computed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from stepprof.analysis.report.activities import STILL_NS, Activity
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.meetings import Visit, are_comparable, bounds, leaves_within

__all__ = ["SampledWait", "sampled_waits"]

MOST_PAIRS = 200_000
"""In more calls of a region, each counted for each pair of ranks, they are not looked for."""


class SampledWait(NamedTuple):
    """A rank waited in a collective of a region while another one computed."""

    start: int
    end: int
    last: str
    """The label of the other one."""


def sampled_waits(
    visits: Mapping[tuple[object, ...], Sequence[Visit]], activities: Mapping[str, Activity]
) -> dict[str, dict[int, SampledWait]]:
    """Return the waits of each process, by its label and by the begin of the visit.

    Args:
        visits: of each region, those of all ranks that have it.
        activities: what samples show, by label.
    """
    found: dict[str, dict[int, SampledWait]] = defaultdict(dict)
    if not activities:
        return found
    for of in visits.values():
        if not are_comparable(of):
            continue
        start, end = bounds(of)
        unmatched = ~np.array([visit.matched for visit in of]).any(axis=0)
        labels = [visit.process.label for visit in of]
        if not activities.keys() >= {*labels} or len(labels) ** 2 * start.shape[1] > MOST_PAIRS:
            continue
        for call in np.flatnonzero(unmatched).tolist():
            entered, gone = start[:, call].tolist(), end[:, call]
            members = [
                _Member(label, begin, activities[label], int(gone.max()))
                for label, begin in zip(labels, entered, strict=True)
            ]
            for member in members:
                wait = _wait(member, members, int(gone.min()))
                if wait is not None and np.ptp(gone) <= leaves_within(wait.end - wait.start):
                    found[member.label][member.entered] = wait
    return found


class _Member:
    """A rank in a visit of a region."""

    def __init__(self, label: str, entered: int, activity: Activity, gone: int) -> None:
        self.label = label
        self.entered = entered
        self.activity = activity
        # what a device does while its thread waits may be work, or a collective
        self.work = activity.certain(activity.computing | activity.device, entered, gone)

    def worked_until(self, start: int, end: int) -> int:
        """Return until when it computed between two times; the first: not for half of the time in the region."""
        inside = self.work.clip(start, end)
        until = int(inside.end[-1]) if len(inside) else start
        return until if 2 * inside.total >= until - max(start, self.entered) else start


def _wait(member: _Member, members: Sequence[_Member], end: int) -> SampledWait | None:
    """Return for which one a rank waited longest until some time, if it did."""
    gaps = (Intervals.one(member.entered, end) - member.work).pairs()
    low, high = max(gaps, key=lambda gap: gap[1] - gap[0], default=(end, end))
    if high - low <= 2 * STILL_NS or 2 * member.activity.in_collectives(low, high) < high - low:
        return None
    until, last = max(((each.worked_until(low, high), each) for each in members), key=itemgetter(0))
    if until - low <= 2 * STILL_NS or any(each.entered > until for each in members):
        return None
    if any(each.activity.until < high - 2 * STILL_NS for each in members):
        return None  # one whose samples ended may have been the last
    rest = high - until  # the other one was in the collective too, or nearly all of the wait is over
    shown = rest <= 2 * STILL_NS or 2 * last.activity.in_collectives(until, high) >= rest
    begin = max(member.activity.expected(low), member.entered)
    done = last.activity.expected(until)
    return SampledWait(begin, done, last.label) if shown and begin < done else None
