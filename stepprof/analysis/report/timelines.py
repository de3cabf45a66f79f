"""Collect what is known of each process over the step: where it was, when it waited, and when it computed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from stepprof.analysis.report.activities import STILL_NS, Activity
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.meetings import CommonEnd, Missed, Visit, common_ends, missed_ends
from stepprof.analysis.report.nesting import Nest
from stepprof.analysis.report.processes import Process, unsure_ns
from stepprof.analysis.report.sampled_meetings import SampledWait, sampled_waits
from stepprof.analysis.report.waiting import Waiting

DRIVER = "driver"
"""The label of a driver, which has no rank."""
Stretch = tuple[int, int, "str | None", tuple[str, ...]]
"""Start, end, role and regions of the innermost window or region."""
Link = tuple[int, int, str]
"""Start and end of a wait, and the label of the awaited process."""
LEAST_NS = 1000
"""A shorter remainder of a wait results from rounding."""
MOST_DEADLINES = 100
"""Of the common times of a process, those for which others worked longest are known."""


@dataclass(slots=True)
class Timeline:
    """What is known of one process over the step."""

    process: Process
    stretches: list[Stretch]
    """(start, end, role, regions) of the innermost window or region, in order, disjoint."""
    waits: list[Link]
    """In collectives, and where ranks meet in a region; in order."""
    waiting: Intervals
    """While it waited in matched collectives, also for a rank on another clock."""
    communicating: Intervals
    """In collectives that were matched across ranks, while it computed nothing."""
    unmatched: Intervals
    """In communication that was not: waiting and transfer cannot be separated."""
    held: Intervals
    generating: Intervals
    nests: list[Nest] = field(default_factory=list)
    activity: Activity = field(default_factory=Activity)
    computing: Intervals = EMPTY
    """It computed, by its trace or its samples."""
    maybe: list[Link] = field(default_factory=list)
    """Possible waits, in order: ranks left a region together, and nothing shows whether they met in it."""
    apart: list[Link] = field(default_factory=list)
    """Ranks left a region together, and this one computed before the last one had entered: it did not wait."""
    deadlines: list[tuple[int, int]] = field(default_factory=list)
    """When ranks that computed left a region together with it: they may have worked until a common time. How much earlier one had entered it [ns]."""
    missed: list[Missed] = field(default_factory=list)
    """Where it may have come too late for a common time of the others."""
    common: Intervals = EMPTY
    """In regions that it left together with other ranks, before the last one had entered."""
    ends: list[int] = field(default_factory=list)
    window_ends: list[int] = field(default_factory=list)
    _links: list[Link] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.window_ends = sorted(window.end for window in self.process.windows if window.ends)
        self.ends = [end for _, end, _, _ in self.stretches]
        self._links = sorted([*self.waits, *self.maybe])
        self._starts = [start for start, _, _ in self._links]

    @property
    def label(self) -> str:
        """The label of its process."""
        return self.process.label

    @property
    def is_rank(self) -> bool:
        """Whether it is a numbered rank, which a driver may lead."""
        return self.process.kind != "engine" and isinstance(self.process.origin.rank, int)

    @property
    def shows_regions(self) -> bool:
        """Whether its regions are known: there are spans of it, or regions in its trace."""
        of_spans = any(digest.origin.kind == "spans" for digest in self.process.digests)
        return of_spans or any(not place.window for nest in self.nests for place in nest.places)

    def with_held(self, start: int, end: int) -> tuple[int, int]:
        """Return some time with that in which the profiler held the process up just before and just after it."""
        starts, ends = self.held.start, self.held.end
        at = int(ends.searchsorted(start, side="right")) - 1
        if at >= 0 and start - ends[at] < LEAST_NS:
            start = int(starts[at])
        at = int(starts.searchsorted(end))
        if at < len(starts) and starts[at] - end < LEAST_NS:
            end = int(ends[at])
        return start, end

    def before(self, time: int) -> Stretch | None:
        """Return the stretch that contains the moment before a time, or the last one that ended before."""
        at = bisect_left(self.ends, time)
        if at < len(self.stretches) and self.stretches[at][0] < time:
            return self.stretches[at]
        return self.stretches[at - 1] if at else None

    def last_window_end(self, time: int) -> int | None:
        """Return when its last window before a time ended."""
        at = bisect_right(self.window_ends, time)
        return self.window_ends[at - 1] if at else None

    def wait_before(self, time: int) -> Link | None:
        """Return the wait, or the possible one, that contains the moment before a time."""
        at = bisect_left(self._starts, time) - 1
        return self._links[at] if at >= 0 and self._links[at][1] >= time - LEAST_NS else None

    def last_wait(self, start: int, time: int) -> int:
        """Return the end of the last wait between two times; `start` if there is none."""
        at = bisect_left(self._starts, time) - 1
        return max(start, min(self._links[at][1], time)) if at >= 0 else start


def timelines(
    processes: Sequence[Process],
    waits: Mapping[str, Waiting],
    short: Collection[str] = (),
    activities: Mapping[str, Activity] | None = None,
) -> list[Timeline]:
    """Return the known times of each process; processes without any are omitted.

    Args:
        processes: of one island.
        waits: inside collectives, by label.
        short: labels of engines whose captures do not show when they finished.
        activities: what samples show, by label.
    """
    activities = activities or {}
    nests = {process.label: _nests(process) for process in processes}
    computing = {
        process.label: process.working()[0] | activities.get(process.label, Activity()).computing
        for process in processes
    }
    stretches = _stretches_of(processes, nests, computing)
    visits = _visits(processes, stretches, waits)
    ends, missed, sampled = common_ends(visits), missed_ends(visits), sampled_waits(visits, activities)
    awaited: dict[str, list[int]] = defaultdict(list)
    for those in sampled.values():
        for wait in those.values():
            awaited[wait.last].append(wait.end)
    links = {
        process.label: _links(
            process,
            waits.get(process.label, Waiting()),
            ends.get(process.label, []),
            sampled.get(process.label, {}),
            activities,
            awaited=sorted(awaited[process.label]),
        )
        for process in processes
    }
    met = {each for of in links.values() for each in of.meetings}
    apart = {label: [link for link in of.apart if link[1:] not in met] for label, of in links.items()}
    deadlines = _deadlines(ends, apart)
    made = []
    for process in processes:
        label = process.label
        generating = process.generating() if label not in short else EMPTY
        if stretches[label] or len(generating):
            activity = activities.get(label, Activity())
            of = links[label]
            # it computed before it met the others, and may have come after the last one to enter
            maybe = sorted([*of.maybe, *(link for link in of.apart if link[1:] in met)])
            operating, communicating, _ = process.working()
            unmatched, waited = EMPTY, EMPTY
            if label in waits:
                unmatched, waited = waits[label].unmatched, waits[label].when | waits[label].for_profiler
            if any(digest.calls.left_out for digest in process.digests):
                unmatched |= communicating
            made.append(
                Timeline(
                    process,
                    stretches[label],
                    sorted([*of.collective, *of.met]),
                    waited - operating,
                    communicating - unmatched - waited - operating,
                    unmatched - operating,
                    process.held(),
                    generating,
                    nests[label],
                    activity,
                    computing[label],
                    maybe,
                    apart[label],
                    deadlines.get(label, []),
                    missed.get(label, []),
                    Intervals.of(link[:2] for link in (*of.met, *of.maybe, *of.apart)),
                )
            )
    return made


def _stretches_of(
    processes: Sequence[Process], nests: Mapping[str, Sequence[Nest]], computing: Mapping[str, Intervals]
) -> dict[str, list[Stretch]]:
    """Return where each process was."""
    found = {process.label: _stretches(process, nests[process.label]) for process in processes}
    drivers = [each for each in processes if each.origin.rank == DRIVER and found[each.label]]
    for process in processes:
        if _is_driven(process, found[process.label], drivers):
            found[process.label] = _of_its_own(process, found[process.label], computing[process.label])
    engines = [process for process in processes if _is_engine(process)]
    alone = not any(found[process.label] for process in processes if process not in engines)
    for process in engines:
        # its annotations are parts of its forward steps; without these they do not show when it worked
        if not alone or len(process.generating()):
            found[process.label] = []
    for process in processes:
        if process.kind == "trace" and not found[process.label] and process not in engines:
            # no annotation divides it: where it was is known all the same
            found[process.label] = [(start, end, None, ()) for start, end in process.covered().pairs()]
    return found


def _is_engine(process: Process) -> bool:
    """Return whether a process generates, and does nothing else."""
    return process.kind == "engine" or (process.kind == "trace" and len(process.generating()) > 0)


def _is_driven(process: Process, stretches: Sequence[Stretch], drivers: Sequence[Process]) -> bool:
    """Return whether the windows of a process follow those of a driver: it has roles."""
    return (
        process.origin.rank != DRIVER
        and any(role is not None for _, _, role, _ in stretches)
        and any(unsure_ns(process, each) is not None for each in drivers)
    )


def _of_its_own(process: Process, stretches: Sequence[Stretch], computing: Intervals) -> list[Stretch]:
    """Leave out the time in which a process that follows a driver waits for a call: it is in no
    region, computes nothing, and is no rank in a role.
    """
    is_rank = isinstance(process.origin.rank, int)
    return [
        each
        for each in stretches
        if each[3]
        or (is_rank and each[2] is not None)
        or 2 * computing.clip(*each[:2]).total >= each[1] - each[0]
    ]


class _Links(NamedTuple):
    collective: list[Link]
    met: list[Link]
    maybe: list[Link]
    apart: list[Link]
    meetings: list[tuple[int, str]]
    """When the last one entered, and its label, of those that are met."""


def _links(
    process: Process,
    waiting: Waiting,
    ends: Sequence[CommonEnd],
    sampled: Mapping[int, SampledWait],
    activities: Mapping[str, Activity],
    *,
    awaited: Sequence[int],
) -> _Links:
    """Return the waits in collectives, and what is known of the regions that ranks leave together.

    There, a rank that entered early waited for the last one, unless it computed. Ranks that leave as soon as the last one has
    entered have met. One that still waits when the last one has left waits for something else. Ranks that go on together
    afterwards may as well have ended at a common time: then only samples show a wait.
    Where a region contains a collective, this is why they leave it together. Where samples show for which one they waited, that is it:
    one for which others waited until the times `awaited` worked itself.
    """
    activity = activities.get(process.label, Activity())
    operating, communicating, _ = process.working()
    found = _Links([], [], [], [], [])
    found.collective.extend(
        link for link in waiting.links if 2 * operating.clip(*link[:2]).total < link[1] - link[0]
    )
    known = Intervals.of((start, end) for start, end, _ in waiting.links)
    busy = operating | activity.others
    computing = busy | activity.computing
    captured = process.covered() | computing | activity.waiting
    for entered, wait in sampled.items():
        if len(known.clip(wait.start, wait.end)):
            continue
        found.met.append(wait)
        worked = busy | activity.certain(activity.computing, entered, wait.start)
        since = _worked_until(worked, entered, wait.start)
        if since < wait.start and len(activity.device.clip(since, wait.start)):
            found.maybe.append((since, wait.end, wait.last))
    for start, end, gone, until, label, together, met in ends:
        if start in sampled:
            found.meetings.append((end, label))
            continue
        if bisect_left(awaited, start) < bisect_right(awaited, until):
            continue
        computes = 2 * computing.clip(start, end).total >= end - start
        if len(known.clip(start, end)) or not (together or computes):
            continue
        if activity.blocked.clip(gone, until).total >= STILL_NS:
            continue
        other = activities.get(label, Activity())
        began = _call_at(communicating, end)
        # it waited in the call, and worked before
        worked = busy | activity.certain(activity.computing, start, end)
        since = _worked_until(worked, start, end) if began is None else max(start, began)
        # if the last one goes on to wait too, and in no collective, all may have waited for something else
        others = other.blocked.clip(end, gone).total
        elsewhere = not met and others >= max(STILL_NS, (gone - end) / 2)
        # the last one may have worked before the call in which they met, where this one waits until then
        resumed = gone if met else _works_from(computing, end, gone)
        arrived = min(resumed, _worked_until(other.certain(other.computing, end, gone), end, gone))
        if met or arrived - end <= 2 * STILL_NS:  # samples do not show it so exactly
            arrived = end
        # it meets others in the region's collectives, and is in none of them when the last one enters
        outside = began is None and len(communicating.clip(start, until)) > 0
        if not (computes or elsewhere or outside) and (
            met or 2 * activity.waiting.clip(since, end).total >= end - since
        ):
            worked |= activity.certain(activity.device, start, end)
            queued = _worked_until(worked, start, end) if began is None else since
            if queued > since:
                found.maybe.append((since, arrived, label))
            found.met.append((queued, arrived, label))
            found.meetings.append((end, label))
        elif not len(communicating.clip(start, until)):
            # one that waits after its work has met the others, or waited for something else
            waits = (activity.waiting - activity.others).clip(end, until).total >= STILL_NS
            unseen = _unseen(captured, start, until)
            if (together or not waits) and not process.is_whole and unseen is not None:
                begin = max(since, unseen)  # it may have waited after the end of its capture
                # without any capture, all that is known is when the last one had come
                found.maybe.append((begin, until if begin >= arrived or len(captured) else arrived, label))
            elif together or not waits:
                (found.apart if computes and not waits else found.maybe).append((start, end, label))
    return found


def _worked_until(computing: Intervals, start: int, end: int) -> int:
    """Return when a process that then waited until a time last stopped computing after another time; that time if it did not compute."""
    last = [high for low, high in computing.clip(start, end).pairs() if high - low >= STILL_NS]
    return last[-1] if last else start


def _works_from(computing: Intervals, start: int, end: int) -> int:
    """Return when a process first computes between two times; the second: it does not."""
    return next((low for low, high in computing.clip(start, end).pairs() if high - low >= STILL_NS), end)


def _unseen(captured: Intervals, start: int, end: int) -> int | None:
    """Return when a capture ended between two times; None: it did not, or just before the second."""
    seen = captured.clip(start, end).pairs()
    last = seen[-1][1] if seen else start
    return last if end - last >= STILL_NS else None


def _call_at(calls: Intervals, time: int) -> int | None:
    """Return when the call at some time began; None: there is none."""
    at = int(calls.start.searchsorted(time, side="right")) - 1
    return int(calls.start[at]) if at >= 0 and calls.end[at] > time else None


def _deadlines(
    ends: Mapping[str, Sequence[CommonEnd]], apart: Mapping[str, Sequence[Link]]
) -> dict[str, list[tuple[int, int]]]:
    """Return when each process left regions in which ranks computed until a common time, and how much earlier these had entered."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for label, those in apart.items():
        chosen = {*those}
        for each in ends.get(label, ()) if chosen else ():
            if (each.start, each.end, each.last) in chosen:
                found[label].append((each.until, each.end - each.start))
                found[each.last].append((each.gone, each.end - each.start))
    return {label: nlargest(MOST_DEADLINES, of, key=itemgetter(1)) for label, of in found.items()}


def _visits(
    processes: Sequence[Process], stretches: Mapping[str, Sequence[Stretch]], waits: Mapping[str, Waiting]
) -> dict[tuple[object, ...], list[Visit]]:
    """Return the innermost stretches of each region of ranks. Where a matched collective is inside, it shows where they met."""
    visits: dict[tuple[object, ...], dict[str, Visit]] = {}
    for process in processes:
        if process.kind != "rank" or not isinstance(process.origin.rank, int):
            continue
        own = waits.get(process.label)
        matched = EMPTY if own is None else process.working()[1] - own.unmatched
        inside = matched.within(
            np.array([start for start, *_ in stretches[process.label]], np.int64),
            np.array([end for _, end, *_ in stretches[process.label]], np.int64),
        )
        for (start, end, role, region), nanoseconds in zip(
            stretches[process.label], inside.tolist(), strict=True
        ):
            of = visits.setdefault((role, region), {}).setdefault(process.label, Visit(process, [], []))
            of.times.append((start, end))
            of.matched.append(nanoseconds > 0)
    return {key: [*of.values()] for key, of in visits.items()}


def _nests(process: Process) -> list[Nest]:
    """Return the nesting from its spans, otherwise from its traces."""
    spans = [digest for digest in process.digests if digest.origin.kind == "spans"]
    return [digest.nest for digest in spans or process.digests if digest.nest is not None]


def _stretches(process: Process, nests: Sequence[Nest]) -> list[Stretch]:
    """Return the innermost window or region at each moment; without nesting, the windows."""
    found = []
    for nest in nests:
        paths = [nest.path(at) for at in range(len(nest.places))]
        found += [
            (start, end, nest.places[place].role, paths[place]) for start, end, place in nest.stretches()
        ]
    if not found:
        found = [(window.start, window.end, window.role, ()) for window in process.windows if window.ends]
    found.sort(key=lambda each: each[:2])
    disjoint: list[Stretch] = []
    for start, end, role, region in found:
        # captures may overlap by an error of rounding
        begin = max(start, disjoint[-1][1]) if disjoint else start
        if end > begin:
            disjoint.append((begin, end, role, region))
    return disjoint
