"""Build sources and manifests for the tests of the analysis. Times are in milliseconds since `T0`,
so that expected values can be computed by hand.
"""

from __future__ import annotations

import json

import numpy as np

from stepprof.analysis.report.collectives import columns_of
from stepprof.analysis.report.digest import digest
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.matching import Peer
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
from stepprof.run.fragments import read_engine, read_window

T0 = 1_700_000_000_000_000_000
MS = 1_000_000


def source(
    origin, *slices, counters=(), marks=(), alignment=None, findings=(), args=None, whole=True, job=None
):
    """Return a source of slices (track, category, name, start, duration) and counters (track name,
    time, value).

    A track is a kind, or (kind, name). That of a stream may be (kind, name, device), where the
    device is "0" by default. Slices of span files may end in (…, role), those of traces in (…,
    arguments). `job` is the trace's `distributedInfo`, made by `job_of`.
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
        None
        if len(slice_) < 6
        else json.dumps(slice_[5] if isinstance(slice_[5], dict) else {"step": 2, "role": slice_[5]}).encode()
        for slice_ in slices
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
        tracks=[
            Track("async" if kind == "annotations" else kind, text, _key(kind, text, *device))
            for kind, text, *device in tracks
        ],
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
        whole=whole,
        metadata={} if job is None else {"distributedInfo": job},
    )


def job_of(rank, world, *groups):
    """Return torch's description of its job in a trace: the world size and the process groups of
    the rank, with the whole job first.
    """
    config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}]
    config += [
        {"pg_name": str(number), "pg_desc": "undefined", "pg_size": len(ranks), "ranks": list(ranks)}
        for number, ranks in enumerate(groups, 1)
        if rank in ranks
    ]
    return {"backend": "gloo", "rank": rank, "world_size": world, "pg_config": config}


def spans(rank, *slices, host="h", **more):
    """Return the span file of a rank, or of the driver: slices (kind, name, start, duration, role)."""
    pid = 100 + rank if isinstance(rank, int) else 99
    origin = Origin("spans", f"spans/rank-{rank}.000001.jsonl", None, rank, None, host, pid)
    rows = [("thread", kind, name, start, duration, role) for kind, name, start, duration, role in slices]
    return source(origin, *rows, **more)


def trace(rank, *slices, role="actor", host="h", world=None, groups=(), **more):
    """Return the trace of a rank in a role, optionally of a job of `world` ranks with these process
    groups.
    """
    origin = Origin(
        "rank", f"step-000002/{role}/rank-{rank}.trace.json.gz", role, rank, None, host, 100 + rank
    )
    if world is not None:
        more["job"] = job_of(rank, world, *groups)
    return source(origin, *slices, **more)


def window(rank=0, role="actor", start=0, end=100, *, damaged=False, **more):
    """Return a window of a manifest, with every key that a reader gets. Its artifact is the trace
    that `trace` makes.
    """
    entry = {
        "role": role,
        "rank": rank,
        "host": "h",
        "pid": 100 + rank if isinstance(rank, int) else 99,
        "backend": "torch",
        "status": "complete",
        "pending": False,
        "start_unix_ns": T0 + round(start * MS),
        "end_unix_ns": T0 + round(end * MS),
        "artifacts": [
            {"path": f"{role}/rank-{rank}.trace.json.gz", "kind": "torch-trace", "bytes": 1, "events": 1}
        ],
        **more,
    }
    read, problems = read_window(entry, None)
    assert bool(problems) == damaged
    return {**read, "fragment": f"{role}-rank-{rank}.json"}


def engine_entry(replica=0, *, damaged=False, **more):
    """Return the entry of an engine as a reader gets it. Its artifact is the trace that `engine`
    makes.
    """
    entry = {
        "role": "rollout",
        "driver": "driver",
        "replica": replica,
        "kind": "sglang",
        "name": f"e{replica}",
        "host": "h",
        "status": "complete",
        "pending": False,
        "start_seconds": 0.25,
        "stop_seconds": 0.5,
        "artifacts": [
            {
                "path": f"rollout/replica-{replica}/rank-0.trace.json.gz",
                "kind": "trace",
                "bytes": 1,
                "events": 1,
            }
        ],
        **more,
    }
    read, problems = read_engine(entry, None)
    assert bool(problems) == damaged
    return {"fragment": "rollout-engines-rank-driver.json", **read}


def manifest(*windows, engines=(), version=None):
    """Return a step's manifest as it is read."""
    return {"windows": list(windows), "engines": list(engines), "version": version}


def engine(replica, *batches, rank=0, group=None, **more):
    """Return the trace of an engine's worker: forward steps (start, duration, batch size), and a
    batch of 0 at the end. `group`: the number of the data-parallel engine. `names`: the names of
    the steps. `notes`: further annotations of its thread, (name, start, duration).
    """
    role, notes = more.pop("role", "rollout"), more.pop("notes", ())
    name = f"rank-{rank}" if group is None else f"dp-{group}-rank-{rank}"
    origin = Origin(
        "engine",
        f"step-000002/{role}/replica-{replica}/{name}.trace.json.gz",
        role,
        rank,
        replica,
        "h",
        None,
    )
    names = more.pop("names", [f"step[DECODE bs={size}]" for _, _, size in batches])
    steps = [
        ("iterations", "iteration", name, start, duration)
        for name, (start, duration, _) in zip(names, batches, strict=True)
    ]
    steps += [("thread", "user_annotation", *note) for note in notes]
    counters = [("batch size", start, size) for start, _, size in batches]
    counters.append(("batch size", max(start + duration for start, duration, _ in batches), 0))
    return source(origin, *steps, counters=counters, **more)


def _key(kind, text, device="0"):
    """Return the key of a track as the reader of traces makes it. The process of a stream is its
    device. The track of a stream's annotations is `("annotations", its name)`.
    """
    return (kind, device, text) if kind in ("stream", "annotations") else (kind, text)


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


def peer(label, rank, *calls, world=None, groups=(), error=0, host="h", island="", captured=None, whole=None):
    """Return the communication of one rank in the form in which it is matched. A call is (start,
    duration) of gloo's all-reduce, (name, start, duration), or (…, arguments). Times are in
    milliseconds.

    `captured`: the first and last time of its captures. `whole`: whether these contain all of its
    windows. With None they do, unless `captured` is given.
    """
    slices = [call if isinstance(call[0], str) else ("gloo:all_reduce", *call) for call in calls]
    tracks = [("stream", "20") if name.startswith("nccl") else ("thread", "worker") for name, *_ in slices]
    made = digest(
        trace(
            rank,
            *(
                (track, "kernel" if track[0] == "stream" else "user_annotation", *slice_)
                for track, slice_ in zip(tracks, slices, strict=True)
            ),
            world=world,
            groups=groups,
        )
    ).calls
    return Peer(
        label=label,
        columns=columns_of([("actor", made)]),
        rank=rank,
        world=made.world,
        configured=made.configured,
        island=island,
        error_ns=round(error * MS),
        machine=host,
        captured=None if captured is None else Intervals.one(T0 + captured[0] * MS, T0 + captured[1] * MS),
        whole=captured is None if whole is None else whole,
    )


def numbered(start, took, seq, ranks=(0, 1), name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL"):
    """Return a kernel of NCCL with the arguments that torch adds."""
    group = {"Process Group Name": "1", "Process Group Ranks": str(list(ranks)), "Group size": len(ranks)}
    return (name, start, took, {**group, "Seq": seq})
