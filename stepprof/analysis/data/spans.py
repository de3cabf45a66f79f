"""Yield the spans and the steps of a run as columns."""

from __future__ import annotations

import json
from collections import Counter
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


_Process = tuple["int | str", "str | None", "int | None"]
"""Rank, host and process id."""


@dataclass(slots=True)
class _Visit:
    """One visit of a process to a step."""

    process: _Process
    step: int
    start: int
    end: int
    number: int = 1
    """Which visit of the rank to this step."""
    recorded: bool | None = False

    @property
    def key(self) -> tuple[int, int]:
        """The step and the visit: they are the same in each rank."""
        return self.step, self.number


def step_rows(runs: Sequence[Path], warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the steps of a run in one batch, as `span_rows` yields spans."""
    windows: dict[_Process, list[tuple[int, int, int]]] = {}
    for span in _spans(runs, warn):
        step, start = span.get("step"), span.get("start")
        if span["kind"] == "window" and step is not None and start is not None:
            process = (span["rank"], span["host"], span["pid"])
            windows.setdefault(process, []).append((start, start + span.get("dur", 0), step))
    ranks: dict[int | str, list[_Visit]] = {}
    for process in sorted(windows, key=lambda process: _order(process[0])):
        # a job that was restarted has several processes of one rank
        ranks.setdefault(process[0], []).extend(_visits(process, windows[process]))
    recorded = _recorded(runs)
    visits = _of_all(list(ranks.values()))
    _mark(visits, recorded)
    missing = recorded.keys() - {visit.step for visit in visits}
    others = [_of_manifest(step, recorded[step]) for step in sorted(missing)]
    rows = [*_of_spans(visits), *(row for row in others if row is not None)]
    if not visits:
        rows.sort(key=lambda row: row["step"])
    if rows:
        yield len(rows), {name: [row[name] for row in rows] for name in rows[0]}


def _visits(process: _Process, windows: Iterable[tuple[int, int, int]]) -> Iterator[_Visit]:
    """Yield the visits of a process in order, from the start, end and step of its windows.

    Consecutive windows of one step are one visit.
    """
    last: _Visit | None = None
    for start, end, step in sorted(windows):
        if last is not None and last.step == step:
            last.end = max(last.end, end)
            continue
        if last is not None:
            yield last
        last = _Visit(process, step, start, end)
    if last is not None:
        yield last


def _of_all(ranks: Sequence[list[_Visit]]) -> list[_Visit]:
    """Return one visit of each step: that of the rank with most visits, else that of the first rank that has it."""
    for visits in ranks:
        visits.sort(key=lambda visit: visit.start)
        times: Counter[int] = Counter()
        for visit in visits:
            times[visit.step] += 1
            visit.number = times[visit.step]
    most = max(ranks, key=len, default=[])
    found = [*most]
    known = {visit.key for visit in found}
    for visits in ranks:
        if any(visit.key not in known for visit in visits):
            found = _merged(found, visits)
            known = {visit.key for visit in found}
    return found


def _merged(visits: Sequence[_Visit], others: Sequence[_Visit]) -> list[_Visit]:
    """Return visits in order, with the others that are not among them.

    Their order is that of each rank, and of the step numbers where that leaves it open: the clocks of
    different hosts do not show it.
    """
    places = {visit.key: place for place, visit in enumerate(visits)}
    both = {other.key for other in others} & places.keys()
    merged: list[_Visit] = []
    at = 0
    for other in others:
        if other.key in both:
            until = max(places[other.key] + 1, at)
        else:
            until = at
            while until < len(visits) and visits[until].key not in both and visits[until].step < other.step:
                until += 1
        merged += visits[at:until]
        at = until
        if other.key not in both:
            merged.append(other)
    return [*merged, *visits[at:]]


def _mark(visits: Iterable[_Visit], recorded: Mapping[int, Sequence[_Recorded]]) -> None:
    """Note which visits were recorded."""
    times = Counter(visit.step for visit in visits)
    for visit in visits:
        if times[visit.step] == 1 or visit.step not in recorded:
            visit.recorded = visit.step in recorded
            continue
        writers = recorded[visit.step]
        own = [start for writer, start, _ in writers if writer == visit.process]
        if own:
            visit.recorded = any(visit.start <= start <= visit.end for start in own)
        else:  # a later process of the rank, or another rank recorded it
            visit.recorded = False if any(writer[0] == visit.process[0] for writer, _, _ in writers) else None


def _order(rank: int | str) -> tuple[object, ...]:
    return rank != "driver", *rank_order(rank)


def _of_spans(visits: Sequence[_Visit]) -> Iterable[dict[str, Any]]:
    for visit, then in zip_longest(visits, visits[1:]):
        # times of different hosts are not subtracted
        follows = then is not None and then.process[:2] == visit.process[:2]
        yield {
            "step": visit.step,
            "visit": visit.number,
            "process": _label(visit.process[0]),
            "recorded": visit.recorded,
            "start_unix_ns": visit.start,
            "duration_ns": visit.end - visit.start,
            "until_next_ns": then.start - visit.start if follows else None,
        }


_Recorded = tuple[_Process, int, "int | None"]
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
