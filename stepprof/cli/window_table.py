"""The windows of a step as text: what each rank recorded, the overhead and the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepprof.cli.row_grouping import RANGES, grouped, spread
from stepprof.formatting import duration, indented, number, ranges, size, table
from stepprof.run.layout import step_folder

FILE_COLUMNS = ("artifact", "kind", "bytes")
FILE_GROUP_COLUMNS = ("artifact", "kind", "files", "bytes in all")
_ALWAYS = 5
"""Number of columns that are always shown: owner, outcome, duration."""
_NOTHING = frozenset((None, duration(0)))
_NUMBERS = re.compile(r"\d+")

_Entry = Mapping[str, Any]
_Column = tuple[str, str, Callable[[Sequence[_Entry]], "str | None"]]


def windows_table(windows: Sequence[_Entry], *, show_all: bool = False) -> str:
    """Return a row per window, or per group of similar windows. Empty columns are omitted."""
    groups = grouped(
        windows, _kind, (own_seconds,), show_all=show_all, urgent=lambda window: _problem(window) is not None
    )
    columns = [
        (header, side, cells)
        for place, (header, side, cell) in enumerate(_COLUMNS)
        for cells in [[cell(row) for row in groups.rows]]
        if place < _ALWAYS or not _NOTHING.issuperset(cells)
    ]
    rows = zip(*(cells for _, _, cells in columns), strict=True)
    shown = table([header for header, _, _ in columns], rows, "".join(side for _, side, _ in columns))
    note = groups.note("windows")
    return shown if note is None else f"{shown}\n({note})"


def own_seconds(entry: _Entry) -> float | None:
    """Return the duration of a window, or of the recorded part, without the recording's own
    overhead.
    """
    start, end = entry["start_unix_ns"], entry["end_unix_ns"]
    return None if start is None or end is None else (end - start) / 1e9


def artifacts_table(entries: Iterable[_Entry], *, show_all: bool = False) -> str:
    """Return a row per file, or per group of files whose paths differ only in numbers."""
    artifacts = [artifact for entry in entries for artifact in entry["artifacts"]]
    if not artifacts:
        return ""
    groups = grouped(
        artifacts, lambda each: (_NUMBERS.sub("#", each["path"]), each["kind"]), show_all=show_all
    )
    if len(groups.rows) == len(artifacts):
        rows = [["  " + each["path"], each["kind"], size(each["bytes"])] for each in artifacts]
        return table(indented(FILE_COLUMNS), rows, "llr")
    rows = [
        ["  " + _paths(row), row[0]["kind"], number(len(row)), size(sum(each["bytes"] for each in row))]
        for row in groups.rows
    ]
    shown = table(indented(FILE_GROUP_COLUMNS), rows, "llrr")
    return f"{shown}\n  ({groups.note('files')})"


def window_notes(windows: Sequence[_Entry]) -> list[str]:
    """Return notes on windows that the row does not show, each with all ranks it is true of."""
    ranks: dict[tuple[str, str], list[int | str]] = {}
    for window in windows:
        for text in _notes(window):
            ranks.setdefault((_role(window), text), []).append(window["rank"])
    return [f"{role} rank {ranges(which, RANGES)}: {text}" for (role, text), which in ranks.items()]


def _notes(window: _Entry) -> list[str]:
    problem = _problem(window)
    notes = [] if problem is None else [problem]
    if window["capped_by"]:
        notes.append(f"ended early, capped by {window['capped_by']}")
    if window["body_error"]:
        notes.append(f"the body raised {window['body_error']}")
    return notes


def _problem(window: _Entry) -> str | None:
    """Return why the window was not recorded completely."""
    if window["error"]:
        return f"{window['status']}: {window['error']}"
    return None if window["status"] in ("complete", "joined") else str(window["status"])


def _kind(window: _Entry) -> tuple[object, ...]:
    """Return the key that the windows of one row share."""
    keys = ("role", "occurrence", "region", "status", "backend", "capped_by")
    joined = _NUMBERS.sub("#", _capture(window) or "")
    return (*(window.get(key) for key in keys), joined, bool(window["body_error"]))


def _role(window: _Entry) -> str:
    name = str(window["role"] or "step")
    return name if window["occurrence"] in (None, 1) else f"{name} ({window['occurrence']})"


def _capture(window: _Entry) -> str | None:
    """Return the capture that a joined window belongs to: the path of its artifacts without suffix."""
    capture = window["capture"]
    if not capture:
        return None
    step = capture.get("step")
    return f"{step_folder(step)}/{capture.get('stem')}" if isinstance(step, int) else str(capture.get("stem"))


def _paths(artifacts: Sequence[_Entry]) -> str:
    first, last = artifacts[0]["path"], artifacts[-1]["path"]
    return (
        first
        if len(artifacts) == 1
        else f"{first} … {last.rpartition('/')[2] if _same_folder(first, last) else last}"
    )


def _same_folder(one: str, other: str) -> bool:
    return one.rpartition("/")[0] == other.rpartition("/")[0]


def _first(cell: Callable[[_Entry], str | None]) -> Callable[[Sequence[_Entry]], str | None]:
    """Return the value that all windows of a row share, or the first of many."""

    def of(row: Sequence[_Entry]) -> str | None:
        found = {text for window in row if (text := cell(window)) is not None}
        first = cell(row[0])
        return first if len(found) < 2 else f"{first} …"

    return of


def _seconds(key: str) -> Callable[[Sequence[_Entry]], str | None]:
    return lambda row: spread((window[key] for window in row), duration)


def bytes_of(row: Sequence[_Entry]) -> str | None:
    """Return the size of the artifacts of each entry of a row."""
    return spread(
        (sum(each["bytes"] for each in window["artifacts"]) for window in row if window["artifacts"]), size
    )


def events_of(row: Sequence[_Entry]) -> str | None:
    """Return the number of events in the artifacts of each entry of a row."""
    counts = []
    for window in row:
        known = [each["events"] for each in window["artifacts"] if isinstance(each["events"], int)]
        counts.append(sum(known) if known else None)
    return spread(counts, lambda count: number(int(count)))


_COLUMNS: tuple[_Column, ...] = (
    ("role", "l", lambda row: _role(row[0])),
    ("rank", "r", lambda row: ranges((window["rank"] for window in row), RANGES)),
    ("status", "l", _first(lambda window: window["status"])),
    ("backend", "l", _first(lambda window: window["backend"])),
    ("seconds", "r", lambda row: spread(map(own_seconds, row), duration)),
    ("region", "l", _first(lambda window: window.get("region"))),
    ("arm s", "r", _seconds("arm_seconds")),
    ("start s", "r", _seconds("start_seconds")),
    ("wait s", "r", _seconds("wait_seconds")),
    ("stall s", "r", _seconds("stall_seconds")),
    ("export s", "r", _seconds("export_seconds")),
    ("bytes", "r", bytes_of),
    ("events", "r", events_of),
    ("joined", "l", _first(_capture)),
)
WINDOW_COLUMNS = tuple(header for header, _, _ in _COLUMNS)
