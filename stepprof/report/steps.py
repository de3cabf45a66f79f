"""How far the steps of a run differ among themselves, by the spans of all of them: what a difference between two recorded steps has to exceed before it means anything.

Recording makes a step longer, and the first one of a run compiles, allocates and opens connections: neither says how equal steps differ, so both are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from statistics import median, stdev

import msgspec
import numpy as np

from stepprof.manifest import steps
from stepprof.report.intervals import Intervals
from stepprof.report.schema import Spread
from stepprof.rundir import SPANS
from stepprof.timeline.salvage import DECODE_ERRORS
from stepprof.timeline.spanfiles import LARGEST_NS, span_files

__all__ = ["FEWEST", "spreads"]

FEWEST = 3
"""Steps from which on a spread means something."""


class _Span(msgspec.Struct, gc=False):
    name: str
    kind: str
    start: int
    dur: int
    step: int | None = None
    role: str | None = None


_span = msgspec.json.Decoder(_Span)
_Key = tuple[str | None, str | None]
_Edges = dict[_Key, dict[int, list[tuple[int, int]]]]


def spreads(runs: Sequence[Path]) -> list[Spread]:
    """The spread of the whole step, of each role and of each region between the steps of a run, whose parts may lie in several folders; empty with fewer than `FEWEST` steps."""
    edges = _edges(runs)
    recorded = {step for run in runs for step in steps(run)}
    counted = set(sorted(edges[None, None])[1:]) - recorded
    rows = []
    for (role, region), of in edges.items():
        seconds = [_seconds(of[step], (role, region) == (None, None)) for step in counted & of.keys()]
        if len(seconds) >= FEWEST:
            rows.append(Spread(role, region, len(seconds), median(seconds), stdev(seconds)))
    return rows


def _edges(runs: Iterable[Path]) -> _Edges:
    """When each role (its windows), each region of a role, and anything at all was entered and left, in each step."""
    edges: _Edges = defaultdict(lambda: defaultdict(list))
    files = [file for run in runs for process in span_files(run / SPANS) for file in process.files]
    for span in (span for file in files for span in _spans(file)):
        if span.step is not None:
            one = (span.start, span.start + span.dur)
            edges[None, None][span.step].append(one)
            if span.kind == "region":
                edges[span.role, span.name][span.step].append(one)
            elif span.role is not None:
                edges[span.role, None][span.step].append(one)
    return edges


def _spans(file: Path) -> Iterable[_Span]:
    """The windows and regions of a file; what is damaged is told by whoever reads the step itself."""
    try:
        with file.open("rb") as lines:
            for line in lines:
                try:
                    span = _span.decode(line)
                except DECODE_ERRORS:
                    continue
                if span.kind in ("window", "region") and 0 <= span.start < LARGEST_NS > span.dur >= 0:
                    yield span
    except OSError:
        return


def _seconds(edges: Collection[tuple[int, int]], whole: bool) -> float:
    """How long any of it was on, or from the first beginning to the last end."""
    start, end = np.array(list(edges), np.int64).T
    return int(end.max() - start.min() if whole else Intervals.union(start, end).total) / 1e9
