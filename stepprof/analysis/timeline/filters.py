"""Filter the events of a source for a timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepprof.analysis.timeline.model import Flags, Source, Times

CPU_OPS = frozenset({"cpu_op", "python_function"})
"""Categories of the host's operators and, if stacks were recorded, of its calls."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filter options. Flows are removed together with the slices that they connect."""

    min_ns: int = 0
    """Shorter slices are removed."""
    cpu_ops: bool = True
    """False: slices of `CPU_OPS` are removed."""
    from_ns: int | None = None
    """Events that end before this time are removed [ns since 1970]; None: no limit."""
    to_ns: int | None = None
    """Events that start after this time are removed; None: no limit."""

    def __bool__(self) -> bool:
        return self != Filters()

    def apply(self, source: Source) -> Source:
        """Return the source without the filtered events. A slice that crosses an edge of the range
        is not cut.
        """
        if not self:
            return source
        slices, instants, counters = source.slices, source.instants, source.counters
        kept = self._within(slices.start, slices.start + slices.duration)
        if self.min_ns > 0:
            kept &= slices.duration >= self.min_ns
        if not self.cpu_ops:
            left_out = [number for number, name in enumerate(source.categories) if name in CPU_OPS]
            kept &= ~np.isin(slices.category, left_out)
        moments = self._within(instants.time, instants.time)
        values = self._within(counters.time, counters.time)
        return source.parts(kept, moments, values)

    def _within(self, start: Times, end: Times) -> Flags:
        kept = np.ones(len(start), np.bool_)
        if self.from_ns is not None:
            kept &= end >= self.from_ns
        if self.to_ns is not None:
            kept &= start <= self.to_ns
        return kept
