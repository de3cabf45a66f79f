"""The processes of a run as `stepprof status` shows them: rows, grouped if similar, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepprof.cli.row_grouping import FULL_ROWS, RANGES, bounded, grouped, one_or_count, spread
from stepprof.formatting import counted, duration, label_ranges, printable, ranges, size
from stepprof.run.status import LIVE

HEADERS = ["rank", "host", "condition", "state", "since", "step", "role", "step s", "health", "exports", "recorded", "bytes"]  # fmt: skip
ALIGN = "lllllrlrlrrr"
PROBLEMS = frozenset({"crashed", "stale", "damaged"})
MOST_ENGINES = 6
"""Number of engine rows to show when engines share rows."""
LEAST_URGENT = 3


def status_rows(
    processes: Sequence[Mapping[str, Any]], *, show_all: bool
) -> tuple[list[list[Any]], list[str]]:
    """Return the cells of each row, and a note on omitted rows."""
    count = sum(1 + len(status["engines"]) for status in processes)
    if show_all or count <= FULL_ROWS:
        alone = ([_row([status]), *_engine_rows([status], together=False)] for status in processes)
        return [row for rows in alone for row in rows], []
    ahead = max((status["step"] for status in processes if status["step"] is not None), default=0)
    groups = grouped(
        processes,
        lambda status: (
            *(status[key] for key in ("condition", "state", "role", "health")),
            status["last_error"] is None,
        ),
        (lambda status: status["step_seconds"], lambda status: _behind(status, ahead)),
        urgent=lambda status: urgency(status) < LEAST_URGENT,
    )
    engines = _engine_rows(processes, together=True)
    left_out = engines[MOST_ENGINES:]
    lines = [line for line in (groups.note("processes"),) if line is not None]
    if left_out:
        lines.append(f"{counted(len(left_out), 'row')} of engines omitted; --all shows each")
    return [*map(_row, groups.rows), *engines[:MOST_ENGINES]], lines


def _behind(status: Mapping[str, Any], ahead: int) -> int | None:
    """Return how many steps a process is behind the most advanced one."""
    return None if status["step"] is None or status["condition"] != LIVE else ahead - status["step"]


def _row(row: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the cells of processes that share condition and state."""
    first = row[0]
    over = first["condition"] != LIVE
    ages = [status["age_seconds"] if over else status["state_seconds"] for status in row]
    exports = [len(status["pending_exports"] or ()) for status in row]
    return [
        ranges((status["file"] if status["rank"] is None else status["rank"] for status in row), RANGES),
        one_or_count((status["host"] for status in row), "host"),
        first["condition"],
        f"was {first['state']}" if over and first["state"] not in (None, "idle") else first["state"],
        spread(ages, _ago),
        spread((status["step"] for status in row), str),
        first["role"],
        spread((status["step_seconds"] for status in row), duration),
        first["health"],
        spread(exports, str) if any(exports) else None,
        spread((len(status["recorded_steps"] or ()) or None for status in row), str),
        spread((status["recorded_bytes"] or None for status in row), size),
    ]


def _engine_rows(processes: Sequence[Mapping[str, Any]], *, together: bool) -> list[list[Any]]:
    """Return the cells of these processes' engines, unhealthy ones first.

    Engines of a role with the same state are grouped.
    """
    found: dict[tuple[str, str | None, str | None], list[tuple[str, str | None]]] = {}
    for status in processes:
        for label, engine in status["engines"].items():
            state = None if status["condition"] != LIVE else engine["state"]
            key = (label.rpartition("/")[0] if together else label, state, engine["health"])
            found.setdefault(key, []).append((label, engine["host"]))
    rows = list(found.items())
    if together:
        rows.sort(key=lambda row: row[0][2] in ("ok", None))
    return [
        ["  " + label_ranges([label for label, _ in engines], RANGES),
         one_or_count((host for _, host in engines), "host"),
         None, state, None, None, None, None, health, None, None, None]
        for (_, state, health), engines in rows
    ]  # fmt: skip


def status_notes(content: Mapping[str, Any], *, show_all: bool) -> list[str]:
    """Return the last errors and the outcomes of requests, each with all processes it is true of."""
    by_error: dict[str, list[int | str]] = {}
    for status in content["processes"]:
        if status["last_error"]:
            rank = status["file"] if status["rank"] is None else status["rank"]
            by_error.setdefault(status["last_error"], []).append(rank)
    errors = [f"rank {ranges(ranks, RANGES)}: {error}" for error, ranks in by_error.items()]
    asked = []
    for request in content["requests"]:
        outcomes = Counter(str(outcome["outcome"]) for outcome in request["outcomes"])
        what = ", ".join(f"{name} by {count}" for name, count in outcomes.items())
        role = f" of role {request['role']}" if request["role"] else ""
        asked.append(f"request {request['name']} (steps {request['steps']}{role}): {what}")
        reasons = Counter(
            str(outcome["reason"])
            for outcome in request["outcomes"]
            if outcome["reason"] and (outcome["outcome"] in ("missed", "refused") or outcome["missed"])
        )
        asked += [f"  {reason} ({count})" for reason, count in reasons.most_common(3)]
    return [printable(note) for note in bounded([errors, asked], show_all=show_all)]


def _ago(seconds: float) -> str:
    """Return a duration for people.

    >>> _ago(3.2), _ago(75), _ago(7300)
    ('3 s', '1 min', '2 h')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def urgency(status: Mapping[str, Any]) -> int:
    """Return the sort key that puts unhealthy processes first, then recording ones."""
    if status["condition"] in PROBLEMS:
        return 0
    if status["last_error"] is not None:
        return 1
    return LEAST_URGENT if status["state"] in (None, "idle") else 2
