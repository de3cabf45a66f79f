"""Draw the critical path of a step, and the role of each process over time, as tracks of a timeline."""

from __future__ import annotations

import msgspec
import numpy as np

from stepprof.analysis.report.schema import PathSegment, Report
from stepprof.analysis.report.wording import path_text
from stepprof.analysis.timeline.model import (
    Alignment,
    Counters,
    Flows,
    Instants,
    Origin,
    Slices,
    Source,
    Track,
)

CRITICAL_PATH = "critical path"
_SECONDS = 10**9
_LATEST = 2**62
_SEVERAL = "the critical path is not drawn: the clocks of hosts were never compared"


def step_tracks(report: Report) -> Source:
    """Return a source with a track for the critical path, and one for the roles of each process that has some."""
    rows: list[tuple[int, int, str, str, int, bytes | None]] = []
    tracks = [Track("async", CRITICAL_PATH, ("path",), 0)]
    several = len(report.islands) > 1
    start = report.start_unix_ns
    for segment in [] if several else report.path:
        begin, end = start + _ns(segment.start), start + _ns(segment.start + segment.seconds)
        rows.append((begin, end, _name(segment), CRITICAL_PATH, 0, _facts(segment)))
    for row in [] if several else report.gantt:
        windows = [bar for bar in row.bars if bar.role is not None and bar.name == bar.role]
        if windows:
            tracks.append(Track("async", f"role of {row.label}", (row.label,), len(tracks)))
        for bar in windows:
            begin, end = start + _ns(bar.start), start + _ns(bar.start + bar.seconds)
            rows.append((begin, end, bar.name, "role", len(tracks) - 1, None))
    rows = [row for row in rows if 0 <= row[0] <= row[1] < _LATEST]  # times of a damaged file
    return _source(rows, tracks, [_SEVERAL] if several else [])


def _ns(seconds: float) -> int:
    return round(seconds * _SECONDS)


def _name(segment: PathSegment) -> str:
    """Return the process and what it did: the innermost region, else the role, else the kind."""
    what = segment.region[-1] if segment.region else segment.role or segment.kind
    return (
        f"{segment.process}: {what}"
        if segment.kind == "work"
        else f"{segment.process}: {what} ({segment.kind})"
    )


def _facts(segment: PathSegment) -> bytes:
    facts = {
        "process": segment.process,
        "kind": segment.kind,
        "role": segment.role,
        "region": path_text(segment.region) or None,
    }
    return msgspec.json.encode({key: value for key, value in facts.items() if value is not None})


def _source(
    rows: list[tuple[int, int, str, str, int, bytes | None]], tracks: list[Track], findings: list[str]
) -> Source:
    names = list(dict.fromkeys(row[2] for row in rows))
    categories = list(dict.fromkeys(row[3] for row in rows))
    number = {name: at for at, name in enumerate(names)}
    none = np.zeros(0, np.int64)
    no = np.zeros(0, np.int32)
    return Source(
        Origin("trace", "the step"),
        Alignment("reference"),
        names,
        categories,
        tracks,
        Slices(
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] - row[0] for row in rows], np.int64),
            np.array([number[row[2]] for row in rows], np.int32),
            np.array([categories.index(row[3]) for row in rows], np.int32),
            np.array([row[4] for row in rows], np.int32),
            [row[5] for row in rows],
        ),
        Instants(none, no, no, no, []),
        Counters(none, np.zeros(0), no),
        Flows(none, no, none, no, no),
        findings,
    )
