"""Yield the spans and the steps of a run as columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from stepprof.analysis.data.table import BATCH_ROWS, Batch, Warn
from stepprof.run.manifest import read_step
from stepprof.run.runs import steps
from stepprof.run.spans import read_spans
from stepprof.run.summary import rank_order

KINDS = ("window", "region", "mark", "counter")


def span_rows(runs: Sequence[Path], warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the spans of a run's directories, file by file.

    Args:
        runs: the directories of one run.
        warn: receives the file and the problem of damaged lines.
    """
    columns: dict[str, list[Any]] = {}
    count = 0
    for span in _spans(runs, warn):
        row = _row(span)
        if not columns:
            columns = {name: [] for name in row}
        for name, value in row.items():
            columns[name].append(value)
        count += 1
        if count == BATCH_ROWS:
            yield count, columns
            columns, count = {}, 0
    if count:
        yield count, columns


def _spans(runs: Sequence[Path], warn: Warn) -> Iterator[dict[str, Any]]:
    for run in runs:
        findings: list[dict[str, Any]] = []
        for span in read_spans(run, findings=findings):
            if span.get("kind") in KINDS:
                yield span
        for finding in findings:
            warn(finding["file"], finding["problem"])


def _row(span: Mapping[str, Any]) -> dict[str, Any]:
    attributes, value = span.get("attrs"), span.get("value")
    return {
        "step": span.get("step"),
        "kind": span["kind"],
        "name": span["name"],
        "role": span.get("role"),
        "process": _label(span["rank"]),
        "rank": span["rank"] if isinstance(span["rank"], int) else None,
        "host": span["host"],
        "pid": _number(span["pid"]),
        "thread": _number(span.get("thread")),
        "task": _number(span.get("task")),
        "start_unix_ns": span.get("start", 0),
        "duration_ns": span.get("dur", 0),
        "value": _value(value) if span["kind"] == "counter" else None,
        "error": bool(span.get("error")),
        "attributes": json.dumps(attributes) if attributes else None,
    }


def _label(rank: int | str) -> str:
    return rank if isinstance(rank, str) else f"rank {rank}"


def _number(value: object) -> int | None:
    return value if type(value) is int and -(1 << 63) <= value < 1 << 63 else None


def _value(value: object) -> float | None:
    """Return the value of a counter; a span file writes NaN and infinities as strings."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(slots=True)
class _Visit:
    """One visit of a process to a step."""

    step: int
    start: int
    end: int
    visit: int = 1
    recorded: bool | None = False


def _visits(windows: Iterable[tuple[int, int, int]]) -> list[_Visit]:
    """Return the visits of a process in order, from the start, end and step of its windows.

    Consecutive windows of one step are one visit.
    """
    found: list[_Visit] = []
    times: dict[int, int] = {}
    for start, end, step in sorted(windows):
        if found and found[-1].step == step:
            found[-1].end = max(found[-1].end, end)
            continue
        times[step] = times.get(step, 0) + 1
        found.append(_Visit(step, start, end, times[step]))
    return found


def step_rows(runs: Sequence[Path], warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the steps of a run in one batch, as `span_rows` yields spans."""
    processes: dict[tuple[int | str, str | None, int | None], list[tuple[int, int, int]]] = {}
    for span in _spans(runs, warn):
        step, start = span.get("step"), span.get("start")
        if span["kind"] == "window" and step is not None and start is not None:
            who = (span["rank"], span["host"], span["pid"])
            end = start + span.get("dur", 0)
            processes.setdefault(who, []).append((start, end, step))
    recorded = _recorded(runs)
    rank = min((who[0] for who in processes), key=_order, default=None)
    visits = []
    # a job that was restarted has several processes of one rank
    for who in (who for who in processes if who[0] == rank):
        known = _visits(processes[who])
        several = {visit.step for visit in known if visit.visit > 1}
        for visit in known:
            own = [start for writer, start, _ in recorded.get(visit.step, ()) if writer == who]
            if visit.step not in several:
                visit.recorded = visit.step in recorded
            elif visit.step in recorded:
                visit.recorded = any(visit.start <= start <= visit.end for start in own) if own else None
        visits += known
    visits.sort(key=lambda visit: visit.start)
    missing = recorded.keys() - {visit.step for visit in visits}
    others = [_of_manifest(step, recorded[step]) for step in sorted(missing)]
    rows = [
        *_of_spans(visits, None if rank is None else _label(rank)),
        *(row for row in others if row is not None),
    ]
    if not visits:
        rows.sort(key=lambda row: row["step"])
    if rows:
        yield len(rows), {name: [row[name] for row in rows] for name in rows[0]}


def _order(rank: int | str) -> tuple[object, ...]:
    return rank != "driver", *rank_order(rank)


def _of_spans(visits: Sequence[_Visit], process: str | None) -> Iterable[dict[str, Any]]:
    for visit, then in zip_longest(visits, (later.start for later in visits[1:])):
        yield {
            "step": visit.step,
            "visit": visit.visit,
            "process": process,
            "recorded": visit.recorded,
            "start_unix_ns": visit.start,
            "duration_ns": visit.end - visit.start,
            "until_next_ns": None if then is None else then - visit.start,
        }


_Recorded = tuple[tuple[Any, Any, Any], int, "int | None"]
"""The process of a recorded window, its start and its end."""


def _recorded(runs: Sequence[Path]) -> dict[int, list[_Recorded]]:
    """Return the recorded windows of each recorded step."""
    found: dict[int, list[_Recorded]] = {}
    for run in runs:
        for step in steps(run):
            found.setdefault(step, []).extend(
                ((window["rank"], window["host"], window["pid"]), window["start_unix_ns"], window["end_unix_ns"])
                for window in read_step(run, step)["windows"]
                if window["start_unix_ns"] is not None
            )  # fmt: skip
    return found


def _of_manifest(step: int, windows: Sequence[_Recorded]) -> dict[str, Any] | None:
    """Return the row of a step without spans, from its recorded windows."""
    row: dict[str, Any] = {"step": step, "visit": 1, "process": None, "recorded": True}
    row |= dict.fromkeys(("start_unix_ns", "duration_ns", "until_next_ns"))
    if windows:
        first = min((who[0] for who, _, _ in windows), key=_order)
        mine = [(start, end) for who, start, end in windows if who[0] == first]
        row |= {"process": _label(first), "start_unix_ns": min(start for start, _ in mine)}
        ends = [end for _, end in mine if end is not None]
        if len(ends) == len(mine):
            row["duration_ns"] = max(ends) - row["start_unix_ns"]
    return row
