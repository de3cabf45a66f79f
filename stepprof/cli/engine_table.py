"""The engines of a step as text: the outcome of each capture, and the clock offsets of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepprof.cli.row_grouping import FULL_ROWS, RANGES, grouped, one_or_count, spread
from stepprof.cli.window_table import bytes_of, events_of, own_seconds
from stepprof.formatting import duration, label_ranges, table
from stepprof.run.summary import engine_label, without_references

CLOCK_COLUMNS = ("clock of", "ahead ms", "± ms", "method")

_Entry = Mapping[str, Any]
_Column = tuple[str, str, Callable[[Sequence[_Entry]], "str | None"]]

_LOCAL = ("local", "same-host")
LATE_SECONDS = 1.0
"""An engine that kept recording for longer than this after its window gets a note."""
_LATE = "stopped late and recorded events after the window: merge and report omit them"
CLOCKS = 3
"""Number of clocks to show when there are more than a table has rows."""


def engines_table(engines: Sequence[_Entry], *, show_all: bool = False) -> str:
    """Return a row per engine, or per group of similar engines: outcome and call durations.

    The times of a capture are shown where known.
    """
    groups = grouped(
        without_references(engines),
        lambda engine: tuple(engine[key] for key in ("role", "occurrence", "kind", "status", "health")),
        (lambda engine: engine["stop_seconds"], lambda engine: engine["start_seconds"]),
        show_all=show_all,
        urgent=lambda engine: engine["status"] not in ("complete", "joined"),
    )
    columns = [
        (header, side, cells)
        for header, side, cell in _COLUMNS
        for cells in [[cell(row) for row in groups.rows]]
        if header not in _WHERE_KNOWN or any(cells)
    ]
    rows = zip(*(cells for _, _, cells in columns), strict=True)
    shown = table([header for header, _, _ in columns], rows, "".join(side for _, side, _ in columns))
    note = groups.note("engines")
    return shown if note is None else f"{shown}\n({note})"


def _took(key: str) -> Callable[[Sequence[_Entry]], str | None]:
    return lambda row: spread((engine[key] for engine in row), duration)


_COLUMNS: tuple[_Column, ...] = (
    ("engine", "l", lambda row: label_ranges(map(engine_label, row), RANGES)),
    ("kind", "l", lambda row: row[0]["kind"]),
    ("status", "l", lambda row: row[0]["status"]),
    ("health", "l", lambda row: row[0]["health"]),
    ("seconds", "r", lambda row: spread(map(own_seconds, row), duration)),
    ("start s", "r", _took("start_seconds")),
    ("stop s", "r", _took("stop_seconds")),
    ("late s", "r", _took("overrun_seconds")),
    ("write s", "r", _took("write_seconds")),
    ("bytes", "r", bytes_of),
    ("events", "r", events_of),
    ("host", "l", lambda row: one_or_count((engine["host"] for engine in row), "host")),
    ("name", "l", lambda row: one_or_count((engine["name"] for engine in row), "engine")),
)
ENGINE_COLUMNS = tuple(header for header, _, _ in _COLUMNS)
_WHERE_KNOWN = ("late s", "write s")


def engine_notes(engines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on engines that the table does not show; each note names all engines it is true
    of.
    """
    said: dict[str, list[Mapping[str, Any]]] = {}
    for engine in without_references(engines):
        if engine["error"]:
            said.setdefault(f"{engine['status']}: {engine['error']}", []).append(engine)
        elif engine["status"] not in ("complete", "joined"):
            said.setdefault(engine["status"], []).append(engine)
        if (engine["overrun_seconds"] or 0.0) > LATE_SECONDS:
            said.setdefault(_LATE, []).append(engine)
        if engine["capped_by"]:
            said.setdefault(f"ended early, capped by {engine['capped_by']}", []).append(engine)
    return [f"{_which(which)}: {text}" for text, which in said.items()]


def _which(engines: Sequence[Mapping[str, Any]]) -> str:
    labels = label_ranges(map(engine_label, engines), RANGES)
    name = engines[0]["name"] if len(engines) == 1 else None
    return f"{labels} ({name})" if name else labels


def clocks_table(clocks: Sequence[Mapping[str, Any]], *, show_all: bool = False) -> str:
    """Return the clocks of other hosts relative to the comparing one; empty if all are of one host.

    Of many clocks, only the least certain ones are returned.
    """
    others = [clock for clock in clocks if clock["method"] not in _LOCAL]
    left_out = 0 if show_all else max(len(others) - FULL_ROWS, 0)
    if left_out:
        others = sorted(others, key=lambda clock: -clock["error_ns"])[:CLOCKS]
        left_out += FULL_ROWS - CLOCKS
    rows = [
        [clock["host"], f"{clock['offset_ns'] / 1e6:+.3f}", f"{clock['error_ns'] / 1e6:.3f}", clock["method"]]
        for clock in others
    ]
    shown = table(CLOCK_COLUMNS, rows, "lrrl") if rows else ""
    return (
        f"{shown}\n({left_out} clocks with a smaller error omitted; --all shows them)" if left_out else shown
    )
