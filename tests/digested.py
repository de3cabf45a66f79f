"""Sources made by hand, for the tests of the analysis: times in milliseconds since `T0`, so that answers can be computed in the head."""

from __future__ import annotations

import json

import numpy as np

from stepprof.timeline.model import Alignment, Counters, Flows, Instants, Origin, Slices, Source, Track

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


def source(origin, *slices, counters=(), marks=(), alignment=None, findings=(), args=None):
    """A source of slices (track, category, name, start, duration) and counters (track name, time, value).

    A track is a kind, or (kind, name). Slices of span files may end in (…, role).
    """
    names, categories, tracks = _Numbers(), _Numbers(), _Numbers()
    rows = [
        (
            tracks[_track(slice_[0])],
            categories[slice_[1]],
            names[slice_[2]],
            T0 + round(slice_[3] * MS),
            round(slice_[4] * MS),
        )
        for slice_ in slices
    ]
    raw = [
        json.dumps({"step": 2, "role": slice_[5]}).encode() if len(slice_) > 5 else None for slice_ in slices
    ]
    values = [(tracks["counter", name], T0 + round(at * MS), value) for name, at, value in counters]
    moments = [
        (names[name], categories["mark"], tracks["thread", "main"], T0 + round(at * MS)) for name, at in marks
    ]
    track, category, name, start, duration = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
    )
    return Source(
        origin=origin,
        alignment=alignment or Alignment("reference"),
        names=list(names),
        categories=list(categories),
        tracks=[Track(kind, text, (kind, text)) for kind, text in tracks],
        slices=Slices(
            _i8(start),
            _i8(duration),
            _i4(name),
            _i4(category),
            _i4(track),
            args or (raw if any(raw) else None),
        ),
        instants=Instants(
            _i8([m[3] for m in moments]),
            _i4([m[0] for m in moments]),
            _i4([m[1] for m in moments]),
            _i4([m[2] for m in moments]),
        ),
        counters=Counters(
            _i8([v[1] for v in values]), np.array([v[2] for v in values], float), _i4([v[0] for v in values])
        ),
        flows=Flows(_i8([]), _i4([]), _i8([]), _i4([]), _i4([])),
        findings=list(findings),
    )


def spans(rank, *slices, host="h", **more):
    """The span file of a rank, or of the driver: slices (kind, name, start, duration, role)."""
    pid = 100 + rank if isinstance(rank, int) else 99
    origin = Origin("spans", f"spans/rank-{rank}.000001.jsonl", None, rank, None, host, pid)
    rows = [("thread", kind, name, start, duration, role) for kind, name, start, duration, role in slices]
    return source(origin, *rows, **more)


def trace(rank, *slices, role="actor", host="h", **more):
    """The trace of a rank in a role."""
    origin = Origin(
        "rank", f"step-000002/{role}/rank-{rank}.trace.json.gz", role, rank, None, host, 100 + rank
    )
    return source(origin, *slices, **more)


def engine(replica, *batches, rank=0, **more):
    """The trace of an engine's worker: forward steps (start, duration, batch size); a batch of none ends the phase."""
    origin = Origin(
        "engine",
        f"step-000002/rollout/replica-{replica}/rank-{rank}.trace.json.gz",
        "rollout",
        rank,
        replica,
        "h",
        None,
    )
    steps = [
        ("iterations", "iteration", f"step[DECODE bs={size}]", start, duration)
        for start, duration, size in batches
    ]
    counters = [("batch size", start, size) for start, _, size in batches]
    counters.append(("batch size", max(start + duration for start, duration, _ in batches), 0))
    return source(origin, *steps, counters=counters, **more)


def _track(track):
    return track if isinstance(track, tuple) else (track, "main")


class _Numbers(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]


def _i8(values):
    return np.array(values, np.int64)


def _i4(values):
    return np.array(values, np.int32)
