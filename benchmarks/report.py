"""Return the table and the JSON document of a run, which can be pasted into an issue."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Row
from benchmarks.peers import library_versions

__all__ = ["SCHEMA_VERSION", "document", "table"]

SCHEMA_VERSION = 1

_HEADINGS = ("", "median", "min", "spread", "added", "ratio", "limit", "within")


def document(rows: Sequence[Row], absent: dict[str, str], *, quick: bool) -> dict[str, object]:
    """Return the complete run as JSON: the machine, the versions, and every row."""
    return {
        "schema_version": SCHEMA_VERSION,
        "quick": quick,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": library_versions(),
        "absent": dict(absent),
        "rows": [row.to_dict() for row in rows],
    }


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in plain text, one block per group."""
    lines: list[tuple[str, ...]] = []
    group = None
    for row in rows:
        if row.group != group:
            group = row.group
            lines += [(), (group,)]
        lines.append(_cells(row))
    widths = [
        max([len(_HEADINGS[column]), *(len(line[column]) for line in lines if len(line) > 1)])
        for column in range(len(_HEADINGS))
    ]

    def laid_out(line: tuple[str, ...]) -> str:
        if len(line) < 2:
            return line[0] if line else ""
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    text = "\n".join(laid_out(line) for line in [_HEADINGS, *lines])
    notes = [f"{row.group}: {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([text, "", *notes]) if notes else text


def _cells(row: Row) -> tuple[str, ...]:
    limit = "" if row.limit is None else f"{_number(row.limit, row.unit)} {row.limit_on}"
    verdict = {None: "", True: "yes", False: "NO"}[row.within]
    return (
        f"  {row.name}",
        "" if row.median is None else _number(row.median, row.unit),
        _number(row.value, row.unit),
        "" if row.spread is None else f"{row.spread:.0%}",
        "" if row.added is None else _number(row.added, row.unit),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        limit,
        verdict,
    )


def _number(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f} {unit}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor()
