"""Find the steps that torch's profiler marked in traces that stepprof did not record, for the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepprof.analysis.data.table import Batch, Warn
from stepprof.analysis.timeline.find import Found, Input
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Source, Times
from stepprof.analysis.timeline.profiler_steps import MarkedStep, cut_to_step, marked_steps


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A process, when it was recorded, and its marked steps."""

    label: str
    start: int
    end: int
    steps: list[MarkedStep]


def marked_processes(found: Found, warn: Warn) -> list[MarkedProcess]:
    """Read each trace, and return its marked steps. `warn` receives the problems of each."""
    made = []
    for each in found.inputs:
        source = load(each, args=False, flows=False, evidence=False)
        if source.extent is None:
            source.findings = source.findings or ["has no events"]
        else:
            made.append(MarkedProcess(source.origin.label, *source.extent, marked_steps(source)))
        for problem in source.findings:
            warn(each.origin.path, problem)
    return made


def marked_rows(processes: Sequence[MarkedProcess]) -> Iterator[tuple[int, Batch]]:
    """Yield the rows of the table of steps: those of the process with most of them; without any, one row for each process."""
    longest = max(processes, key=lambda process: len(process.steps), default=None)
    if longest is None:
        return
    following = [*(step.start for step in longest.steps[1:]), None]
    rows: list[dict[str, Any]] = [
        _row(longest.label, step.number, step.start, step.end, then)
        for step, then in zip(longest.steps, following)  # noqa: B905 - without steps there is one more
    ]
    rows = rows or [_row(each.label, None, each.start, each.end, None) for each in processes]
    yield len(rows), {name: [row[name] for row in rows] for name in rows[0]}


def _row(label: str, number: int | None, start: int, end: int, then: int | None) -> dict[str, Any]:
    return {
        "step": number,
        "visit": 1,
        "process": label,
        "recorded": True,
        "start_unix_ns": start,
        "duration_ns": end - start,
        "until_next_ns": None if then is None else then - start,
    }


def marked_part(source: Source, wanted: Input) -> Source:
    """Return what a source recorded in the wanted step; all of it if no step is wanted."""
    if wanted.marked_step is None:
        return source
    at = next((step for step in marked_steps(source) if step.number == wanted.marked_step), None)
    if at is None:
        slices, instants, counters = (
            np.zeros(len(each), np.bool_) for each in (source.slices, source.instants, source.counters)
        )
        return source.parts(slices, instants, counters)
    return cut_to_step(source, at)


def steps_of(source: Source, wanted: Input, start: Times | None = None) -> Any:
    """Return the number of the marked step in which each slice begins; null: in none.

    Args:
        source: its slices.
        wanted: its input; of a wanted step, all slices are of that step.
        start: the starts of other slices than those of the source.
    """
    start = source.slices.start if start is None else start
    if wanted.marked_step is not None:
        return np.full(len(start), wanted.marked_step, np.int64)
    steps = marked_steps(source)
    if not steps:
        return None
    begins, ends, numbers = np.array([(step.start, step.end, step.number) for step in steps], np.int64).T
    at = np.searchsorted(begins, start, side="right") - 1
    return np.ma.masked_array(numbers[at], (at < 0) | (start >= ends[at]))
