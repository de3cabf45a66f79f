"""Sum up what other threads than that of the windows did in some time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.analysis.findings.signs import Task
from stepprof.analysis.report.intervals import Intervals

ONE = 1.5
"""Fewer threads at a time, on average, count as one."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The tasks of some threads in some time."""

    average: float
    """How many threads were busy on average."""
    pool: bool
    name: str
    """The task that took the most time."""
    label: str
    """What this task mostly did."""
    share: float
    """Share of the label in the time of all tasks."""

    @classmethod
    def of(cls, tasks: Sequence[Task], when: Intervals) -> Busy:
        """Return the summary of some tasks in some time."""
        times = Counter[tuple[str, str]]()
        for each in tasks:
            times[each.name, each.stack.label] += when.clip(each.stack.start, each.stack.end).total
        if not times.total():
            return cls(0.0, False, "", "", 0.0)
        ((name, label), longest), *_ = times.most_common(1)
        pool = all(each.pool for each in tasks)
        return cls(times.total() / when.total, pool, name, label, longest / times.total())

    @property
    def threads(self) -> str:
        """Their number, in words."""
        kind = "pool thread" if self.pool else "other thread"
        return f"one {kind}" if self.average < ONE else f"{self.average:.0f} {kind}s"
