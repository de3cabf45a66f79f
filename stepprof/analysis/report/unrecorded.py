"""Say how long a process would have taken without recording.

A profiler holds its own process up, and the processes that wait for that one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.timelines import Timeline
from stepprof.analysis.timeline.profiler_stalls import Held, profiler_times

Changes = Sequence[tuple[int, int]]
"""By how much longer each wait of a process would be without recording, as (end, nanoseconds)."""


class _Taken:
    """What the recording took of one process, whose clock is ahead of that of the step by some nanoseconds."""

    def __init__(self, profiled: Sequence[Held], waits: Changes, ahead: int = 0) -> None:
        held = self.held = Intervals.of(each[1:] for each in profiled)
        last = max((start for _, start, _ in profiled), default=0)
        # what follows the last window of a process delays nothing in the step
        self.delays = Intervals.of(
            (start - ahead, end - ahead)
            for action, start, end in profiled
            if (action, start) != ("stop", last)
        )
        ordered = sorted(waits)
        self.ends = [end for end, _ in ordered]
        self.sums = [0, *accumulate(change for _, change in ordered)]
        times = [*self.ends, *held.start.tolist(), *held.end.tolist()]
        self.first, self.last = min(times, default=0), max(times, default=0)

    def length(self, start: int, end: int) -> int:
        """Return the nanoseconds that some time would have taken; a wait counts where it ends."""
        if end < self.first or self.last <= start:  # another step
            return end - start
        before, until = bisect_right(self.ends, start), bisect_right(self.ends, end)
        return end - start - self.held.clip(start, end).total + self.sums[until] - self.sums[before]


class Displaced(NamedTuple):
    """For how long waits of a process that were not recorded may differ from those of other steps [s]."""

    longer: float = 0.0
    """The profiler held other processes up meanwhile."""
    shorter: float = 0.0
    """The profiler held this one up, and others came meanwhile."""


@dataclass(frozen=True)
class Unrecorded:
    """What a recording took of processes, by their host and id, on their own clocks."""

    taken: Mapping[str, _Taken] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        windows: Iterable[Mapping[str, Any]],
        waits: Mapping[str, Changes],
        ahead: Mapping[str, int] | None = None,
    ) -> Unrecorded:
        """Return what a recording took: profilers by the windows of the manifests, and waits.

        `ahead`: how far the clock of each process is ahead of that of the step [ns].
        """
        times: dict[str, list[Held]] = defaultdict(list)
        for window in windows:
            times[f"{window.get('host')} {window.get('pid')}"] += profiler_times(window)
        ahead = ahead or {}
        return cls(
            {
                key: _Taken(times.get(key, ()), waits.get(key, ()), ahead.get(key, 0))
                for key in {*times, *waits}
            }
        )

    def length(self, process: str, start: int, end: int) -> int:
        """Return the nanoseconds that some time of a process would have taken."""
        taken = self.taken.get(process)
        return end - start if taken is None else taken.length(start, end)

    def displaced(self, process: str) -> Displaced:
        """Return for how long the profiler held other processes up, but not this one, and the reverse."""
        own = self.taken[process].delays if process in self.taken else EMPTY
        others = [each.delays for key, each in self.taken.items() if key != process]
        shorter = max(((own - each).total for each in others), default=0)
        return Displaced((Intervals.all_of(others) - own).total / 1e9, shorter / 1e9)


def changes_of(known: Iterable[Timeline], graph: StepGraph) -> list[tuple[str, Changes]]:
    """Return how waits would change, by the host and id of the process."""
    changes = graph.changed_waits()
    return [
        (
            f"{each.process.host} {each.process.origin.pid}",
            [(time + each.process.offset_ns, change) for time, change in changes[each.label]],
        )
        for each in known
        if changes.get(each.label)
    ]
