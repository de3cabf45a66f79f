"""The engines of a step as text: beside the windows of the ranks, what each engine was asked for and what came of it, and whose clock is off by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepprof.summary import engine_label, told_once
from stepprof.tables import duration, number, size, table

__all__ = ["clocks_table", "engine_notes", "engines_table"]

_LOCAL = ("local", "same-host")


def engines_table(engines: Sequence[Mapping[str, Any]]) -> str:
    """Each engine with its outcome and what its calls took."""
    headers = [
        "engine",
        "kind",
        "status",
        "health",
        "seconds",
        "start s",
        "stop s",
        "bytes",
        "events",
        "host",
        "name",
    ]
    rows = []
    for engine in told_once(engines):
        artifacts = engine["artifacts"]
        events = [artifact["events"] for artifact in artifacts if isinstance(artifact["events"], int)]
        start, end = engine["start_unix_ns"], engine["end_unix_ns"]
        rows.append(
            [
                engine_label(engine),
                engine["kind"],
                engine["status"],
                engine["health"],
                None if start is None or end is None else duration((end - start) / 1e9),
                duration(engine["start_seconds"]),
                duration(engine["stop_seconds"]),
                size(sum(artifact["bytes"] for artifact in artifacts)) if artifacts else None,
                number(sum(events)) if events else None,
                engine["host"],
                engine["name"],
            ]
        )
    return table(headers, rows, "llllrrrrrll")


def engine_notes(engines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is to be said of each beyond the table."""
    notes = []
    for engine in told_once(engines):
        who = engine_label(engine) + (f" ({engine['name']})" if engine["name"] else "")
        if engine["error"]:
            notes.append(f"{who}: {engine['status']}: {engine['error']}")
        elif engine["status"] not in ("complete", "joined"):
            notes.append(f"{who}: {engine['status']}")
        if engine["capped_by"]:
            notes.append(f"{who}: ended early, capped by {engine['capped_by']}")
    return notes


def clocks_table(clocks: Sequence[Mapping[str, Any]]) -> str:
    """The clocks of other hosts against the one that compared them; empty where all are of one host."""
    rows = [
        [clock["host"], f"{clock['offset_ns'] / 1e6:+.3f}", f"{clock['error_ns'] / 1e6:.3f}", clock["method"]]
        for clock in clocks
        if clock["method"] not in _LOCAL
    ]
    return table(["clock of", "ahead ms", "± ms", "method"], rows, "lrrl") if rows else ""
