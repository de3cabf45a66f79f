"""Measure how much the steps of a run differ, from the spans of all steps.

A difference between two recorded steps means nothing unless it exceeds that noise. Recording makes
a step longer, and the first step of a run compiles, allocates and opens connections. Both are left
out.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import comb, sqrt
from pathlib import Path
from statistics import median, stdev

import msgspec
import numpy as np

from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.schema import Spread
from stepprof.analysis.report.visits import Numbering
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.span_sources import LARGEST_NS, span_files
from stepprof.instrument.attributes import short_name
from stepprof.run.layout import SPANS
from stepprof.run.runs import steps
from stepprof.run.span_lines import span_lines

FEWEST = 3
"""The number of steps from which a spread is meaningful."""
FEWEST_JUDGED = 6
"""The number of steps from which the median has a 95 % interval: all of fewer steps lie on one side of the
true median with a probability of 1/16 or more.
"""
MOST_EXACT = 100
"""The number of steps up to which that interval is exact, and not that of a normal distribution."""
MOST_PENDING = 64
"""The number of spans of one part of a step that are kept one by one, before they are merged."""


class _Span(msgspec.Struct, gc=False):
    name: str
    kind: str
    start: int
    dur: int
    step: int | None = None
    role: str | None = None


_span = msgspec.json.Decoder(_Span)
_Key = tuple[str | None, str | None]
"""A role and a region of it; windows have no region."""
_Visit = tuple[int, int]
"""A step and the number of the visit to it: a step number may be used again."""


class _Covered:
    """The union of some spans. It is small if many ranks do the same at one time."""

    __slots__ = ("_pending", "_union")

    def __init__(self) -> None:
        self._union = EMPTY
        self._pending = array("q")

    def add(self, start: int, end: int) -> None:
        """Add one span."""
        self._pending.extend((start, end))
        if len(self._pending) > 2 * max(MOST_PENDING, len(self._union)):
            self._unite()

    @property
    def seconds(self) -> float:
        """Nanoseconds in which any of them ran."""
        self._unite()
        return self._union.total / 1e9

    def _unite(self) -> None:
        edges = np.array(self._pending, np.int64)
        self._union |= Intervals.union(edges[0::2], edges[1::2])
        self._pending = array("q")


@dataclass(slots=True)
class _Steps:
    """The spans of a run, summed up by step."""

    edges: dict[_Visit, tuple[int, int]] = field(default_factory=dict)
    """The start of the first span and the end of the last."""
    parts: dict[_Key, dict[_Visit, _Covered]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, step: _Visit, span: _Span) -> None:
        """Add one span of a step."""
        start, end = span.start, span.start + span.dur
        first, last = self.edges.get(step, (start, end))
        self.edges[step] = min(first, start), max(last, end)
        if span.kind != "region" and span.role is None:
            return
        part = self.parts[span.role, span.name if span.kind == "region" else None]
        covered = part.get(step)
        if covered is None:
            covered = part[step] = _Covered()
        covered.add(start, end)


def spreads(runs: Sequence[Path]) -> list[Spread]:
    """Return the spread between the steps of a run: of the whole step, of each role and of each
    region.

    The parts of a run may be in several folders. The result is empty for fewer than `FEWEST` steps.
    """
    found = _Steps()
    visits = Numbering()
    for process in (process for run in runs for process in span_files(run / SPANS)):
        windows = (window for file in process.files for window in _spans(file, windows=True))
        visits.begin(
            process.rank,
            [
                (each.start, each.start + each.dur, each.step, each.role)
                for each in windows
                if each.step is not None
            ],
        )
        for span in (span for file in process.files for span in _spans(file)):
            if span.step is not None:
                found.add((span.step, visits.number(span.step, span.start)), span)
    left_out = visits.unequal().union(*(steps(run) for run in runs))
    in_order = sorted(found.edges, key=lambda visit: found.edges[visit])
    counted = {visit for visit in in_order[1:] if visit[0] not in left_out}
    whole = [(found.edges[step][1] - found.edges[step][0]) / 1e9 for step in counted]
    rows = [_spread(None, None, whole)]
    for (role, region), of in found.parts.items():
        rows.append(_spread(role, region, [of[step].seconds for step in counted & of.keys()]))
    return [row for row in rows if row.steps >= FEWEST]


def _spread(role: str | None, region: str | None, seconds: Sequence[float]) -> Spread:
    few = len(seconds) < FEWEST
    deviation = 0.0 if few else stdev(seconds)
    return Spread(
        role, region, len(seconds), 0.0 if few else median(seconds), deviation, _interval(sorted(seconds))
    )


def _interval(ordered: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median: each step lies below the true one with probability 1/2."""
    count = len(ordered)
    if count > MOST_EXACT:
        outside = int(count / 2 - 0.98 * sqrt(count)) - 1
    else:
        below = accumulate(comb(count, number) / 2**count for number in range(count))
        outside = sum(share <= 0.025 for share in below) - 1
    return (ordered[outside], ordered[-1 - outside]) if outside >= 0 else None


def _spans(file: Path, *, windows: bool = False) -> Iterable[_Span]:
    """Yield the windows and regions of a file, or its windows only.

    Damage is reported when the step itself is read.
    """
    try:
        for line in span_lines(file, windows=windows):
            try:
                span = _span.decode(line)
            except DECODE_ERRORS:
                continue
            if (
                span.kind in (("window",) if windows else ("window", "region"))
                and 0 <= span.start < LARGEST_NS > span.dur >= 0
            ):
                span.name = short_name(span.name)
                yield span
    except OSError:
        return
