"""Measure the steps of a run from the spans of its processes, each by its own clock.

No two clocks are compared: a step lasts from the begin of its first window to the begin of the next step in
one process, and a part of a step as long as in the process in which it took longest. The spans of all steps
are read, one process at a time.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

import msgspec
import numpy as np

from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.schema import MarkedLength
from stepprof.analysis.report.visits import Numbering
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.span_sources import HEADER_BYTES, LARGEST_NS, SpanFiles, span_files
from stepprof.host.plain_files import open_plain
from stepprof.instrument.attributes import short_name
from stepprof.run.layout import SPANS
from stepprof.run.runs import read_run, steps
from stepprof.run.span_lines import span_lines
from stepprof.run.summary import Rank, rank_order

FEW_SPANS = 16
"""So many spans of one part of a step are united without numpy, which is slower for few."""

Visit = tuple[int, int]
"""A step and the number of the visit to it, from 0: a step number may be used again."""
Part = tuple["str | None", "str | None"]
"""A role and a region of it. A role as a whole has no region, and the step neither."""
STEP: Part = (None, None)


class _Attributes(msgspec.Struct, gc=False):
    unfinished: object = None


class _Span(msgspec.Struct, gc=False):
    name: str
    kind: str
    start: int
    dur: int
    step: int | None = None
    role: str | None = None
    attrs: _Attributes | None = None
    error: bool = False


class _Header(msgspec.Struct):
    world_size: int | None = None


_span = msgspec.json.Decoder(_Span)
_header = msgspec.json.Decoder(_Header)


@dataclass(slots=True)
class ProcessSteps:
    """The steps of one process."""

    rank: Rank
    windows: dict[Visit, tuple[int, int]]
    """When the first window of each visit began and the last one ended, nanoseconds by its own clock, in the order of the begins."""
    seen: set[Visit] = field(default_factory=set)
    """The visits of which it has any span."""
    cut: set[Visit] = field(default_factory=set)
    """Those in which an exception, SIGTERM or its end ended a window: how long that would have been is not known."""


@dataclass
class RunSteps:
    """The steps of a run."""

    processes: list[ProcessSteps] = field(default_factory=list)
    """Those that show how long its steps take: the driver and the ranks, or all processes if there are none."""
    world_size: int | None = None
    """The number of ranks, as the processes and the run state it; None: not stated."""
    parts: dict[Part, dict[Visit, float]] = field(default_factory=dict)
    """Seconds of each part in each visit, in the process in which it took longest."""
    recorded: set[int] = field(default_factory=set)
    """Steps that were recorded: that makes them longer."""
    unclear: set[int] = field(default_factory=set)
    """Steps that some ranks visited more often than others: their visits cannot be told apart."""
    marked: bool = False
    """Whether torch's profiler marked the steps in one capture, which has no first step of a process."""

    @cached_property
    def _lives(self) -> list[ProcessSteps]:
        """The processes of the rank with the most visits, the driver first: their order of visits is that of the run."""
        counts: dict[Rank, int] = defaultdict(int)
        for process in self.processes:
            counts[process.rank] += len(process.windows)
        rank = min(counts, key=lambda rank: (-counts[rank], *_order(rank)), default=None)
        return [process for process in self.processes if process.rank == rank]

    @cached_property
    def _following(self) -> Mapping[Visit, Visit]:
        return dict(chain.from_iterable(pairwise(process.windows) for process in self._lives))

    @cached_property
    def first(self) -> set[Visit]:
        """The first visit of each process: it compiles, allocates and opens connections."""
        if self.marked:
            return set()
        return {next(iter(process.windows)) for process in self._lives if process.windows}

    def roles(self, visit: Visit) -> set[str | None]:
        """Return the roles that have windows in a visit."""
        return {role for (role, region), of in self.parts.items() if region is None and visit in of}

    @cached_property
    def usual(self) -> list[Visit]:
        """The visits that show how long a step usually takes: without recorded ones, and the first one of a process."""
        left_out = self.first.union(*(process.cut for process in self.processes))
        return [
            visit
            for process in self._lives
            for visit in process.windows
            if visit not in left_out and not {visit[0]} & (self.recorded | self.unclear)
        ]

    @cached_property
    def lengths(self) -> dict[Visit, float]:
        """Seconds of each usual visit from its begin to the begin of the next one, in the process in which they are most.

        Before a recorded step its engines and its profiler are started, so the step before has no length.
        """
        found: dict[Visit, float] = {}
        usual = {visit for visit in self.usual if self._following.get(visit, visit)[0] not in self.recorded}
        for process in self.processes:
            for (visit, (begin, _)), (then, (end, _)) in pairwise(process.windows.items()):
                if visit in usual and self._following.get(visit) == then:
                    found[visit] = max((end - begin) / 1e9, found.get(visit, 0.0))
        return found

    @cached_property
    def windows(self) -> dict[Visit, float]:
        """Seconds of each visit from its first window to the end of its last one, in the process in which they are most."""
        found: dict[Visit, float] = {}
        for process in self.processes:
            for visit, (begin, end) in process.windows.items():
                found[visit] = max((end - begin) / 1e9, found.get(visit, 0.0))
        return found

    def visit(self, step: int | None, occurrence: int, occurrences: int) -> Visit | None:
        """Return the visit of a recorded step; None: not known, or without windows.

        Args:
            step: its number.
            occurrence: which of its recorded occurrences, from 1.
            occurrences: how many were recorded.
        """
        found = sorted(visit for visit in self.windows if visit[0] == step)
        is_known = len(found) == occurrences and (step not in self.unclear or occurrences == 1)
        return found[occurrence - 1] if is_known else None

    def is_cut(self, visit: Visit) -> bool:
        """Return whether a process did not finish a visit."""
        return any(visit in process.cut for process in self.processes)

    def ranks(self, visit: Visit) -> list[Rank]:
        """Return the ranks of the processes that have spans of a visit."""
        return sorted((each.rank for each in self.processes if visit in each.seen), key=_order)

    def by_rank(self, visit: Visit | None) -> dict[Rank, float]:
        """Return the seconds of a visit in each rank that finished it, from its first window to its last one."""
        found: dict[Rank, float] = {}
        for process in self.processes:
            if visit is not None and visit in process.windows and visit not in process.cut:
                begin, end = process.windows[visit]
                found[process.rank] = max((end - begin) / 1e9, found.get(process.rank, 0.0))
        return found

    def values(self, part: Part) -> list[float]:
        """Return the seconds of a part in the usual visits that have it."""
        found = self.windows if part == STEP else self.parts.get(part, {})
        return [found[visit] for visit in self.usual if visit in found]


def _order(rank: Rank) -> tuple[object, ...]:
    return rank != "driver", *rank_order(rank)


def marked_run(marked: Sequence[MarkedLength]) -> RunSteps:
    """Return the steps that torch's profiler marked in the traces of a job, each as long as in the rank in which it took longest."""
    begin, windows = 0, {}
    for step in sorted(marked, key=lambda step: step.number):
        windows[step.number, 0] = (begin, begin + round(step.seconds * 1e9))
        begin = windows[step.number, 0][1]
    return RunSteps([ProcessSteps(0, windows, {*windows})] if windows else [], marked=True)


def run_steps(runs: Sequence[Path]) -> RunSteps:
    """Return the steps of a run, whose parts may be in several folders."""
    stated = [read_run(run).get("world_size") for run in runs]
    found = RunSteps(recorded={number for run in runs for number in steps(run)})
    visits = Numbering()
    processes = []
    for process in (process for run in runs for process in span_files(run / SPANS)):
        stated += map(_world_size, process.files)
        processes.append(_read(process, visits, found.parts))
    jobs = [each for each in processes if each.rank == "driver" or isinstance(each.rank, int)]
    found.processes = jobs or processes
    found.world_size = max((each for each in stated if isinstance(each, int)), default=None)
    found.unclear = visits.unequal()
    return found


def _read(process: SpanFiles, visits: Numbering, parts: dict[Part, dict[Visit, float]]) -> ProcessSteps:
    """Return the steps of a process, and add its seconds to the parts."""
    windows = [
        (span.start, span.start + span.dur, span.step, span.role)
        for file in process.files
        for span in _spans(file, windows=True)
        if span.step is not None
    ]
    visits.begin(process.rank, windows)
    edges: dict[Visit, tuple[int, int]] = {}
    for start, end, step, _ in sorted(windows, key=lambda window: window[:2]):
        visit = (step, visits.number(step, start))
        first, last = edges.get(visit, (start, end))
        edges[visit] = (first, max(last, end))
    found = ProcessSteps(process.rank, edges, {*edges})
    once: dict[tuple[Part, Visit], tuple[int, int]] = {}
    often: dict[tuple[Part, Visit], array[int]] = {}
    """Most parts have one span in a step, and an array for each would take twice the time."""
    for span in chain.from_iterable(map(_spans, process.files)):
        if span.step is None:
            continue
        start = span.start
        visit = (span.step, visits.number(span.step, start))
        found.seen.add(visit)
        if span.kind == "window" and (span.error or (span.attrs is not None and span.attrs.unfinished)):
            found.cut.add(visit)
        is_region = span.kind == "region"
        if not is_region and span.role is None:
            continue
        key = ((span.role, span.name if is_region else None), visit)
        if key not in once:
            once[key] = (start, start + span.dur)
        elif key in often:
            often[key].extend((start, start + span.dur))
        else:
            often[key] = array("q", (*once[key], start, start + span.dur))
    for key, (start, end) in once.items():
        part, visit = key
        of = parts.setdefault(part, {})
        length = _covered(often[key]) if key in often else end - start
        of[visit] = max(length / 1e9, of.get(visit, 0.0))
    return found


def _covered(times: array[int]) -> int:
    """Return the nanoseconds in which any of the spans ran, from their begins and ends."""
    if len(times) > 2 * FEW_SPANS:
        edges = np.frombuffer(times, np.int64)
        return Intervals.union(edges[0::2], edges[1::2]).total
    total, reach = 0, 0
    for start, end in sorted(zip(times[0::2], times[1::2], strict=True)):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def _world_size(file: Path) -> int | None:
    try:
        with open_plain(file) as lines:
            return _header.decode(lines.read(HEADER_BYTES).partition(b"\n")[0]).world_size
    except (OSError, *DECODE_ERRORS):
        return None


def _spans(file: Path, *, windows: bool = False) -> Iterator[_Span]:
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
