"""A small, intact run with every kind of file that a run can have."""

from __future__ import annotations

import gzip
import json
import pickle
import time
from pathlib import Path

from npudatabase import write_database
from runs import ended_writer, make_run, record

from stepprof.run.requests import Request, place_request

__all__ = ["OUTSIDE", "whole_run"]

BEGIN = 1_700_000_000_000_000_000
STEP = 2
OUTSIDE = "no file of the run\n"
"""The content of a file next to the run, which no command may show."""


def whole_run(folder: Path) -> Path:
    """Write the run and return its folder."""
    run = make_run(
        folder, "r", config={"ranks": "all", "roles": {"actor": {"ranks": "0-1"}}}, created_unix_ns=BEGIN
    )
    for rank in (0, 1):
        record(run, STEP, "actor", rank, data=_trace(rank), thread=rank + 1, pid=rank + 7)
        _spans(run.spans_path(rank), rank)
        _status(run.status_path(rank), rank, run.run_id)
    record(run, STEP, "ref", 0, data=b"", artifacts=_others(run.path / f"step-{STEP:06d}"), pid=7)
    record(run, STEP + 1, "actor", 0, data=_trace(0))
    _engine(run)
    _afterwards(run)
    place_request(run.path, Request.make(7, ranks="0"))
    (folder / "outside.txt").write_text(OUTSIDE)
    return run.path


def _trace(rank: int) -> bytes:
    group = {"Process Group Name": "0", "Group size": 2, "Process Group Ranks": "[0, 1]"}
    events = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        *({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 1, "ts": 100 * n, "dur": 50, "args": {"External id": n, "Input Dims": [[2, 2]]}} for n in range(9)),
        *({"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 100 * n + 20, "dur": 40, "args": {"stream": 7, "device": 0, "correlation": n}} for n in range(9)),
        *({"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 20, "ts": 1000 + 100 * n, "dur": 50, "args": {"stream": 20, "device": 0, **group, "Seq": n, "Collective name": "allreduce"}} for n in range(4)),
        {"ph": "s", "id": 1, "pid": 7, "tid": 1, "ts": 100, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 120, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "C", "name": "memory", "pid": 7, "ts": 5, "args": {"bytes": 7}},
        {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 7, "tid": 1, "ts": 7, "s": "t", "args": {"Total Allocated": 9}},
    ]  # fmt: skip
    stated = {"rank": rank, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}
    trace = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BEGIN,
        "distributedInfo": stated,
        "traceEvents": events,
    }
    return gzip.compress(json.dumps(trace).encode(), 1, mtime=0)


def _spans(path: Path, rank: int) -> None:
    head = {
        "schema_version": 1,
        "kind": "spans",
        "run_id": "r",
        "rank": rank,
        "world_size": 2,
        "host": "h",
        "pid": rank + 7,
    }
    common = {"thread": rank + 1, "task": None, "role": "actor"}
    lines = [
        {**head, "anchor": {"unix_ns": BEGIN, "monotonic_ns": 1, "error_ns": 50}},
        *(
            {**common, "name": name, "kind": kind, "step": step, "start": BEGIN + at, "dur": 10**8, **more}
            for step in (STEP, STEP + 1)
            for at, name, kind, more in [
                (0, "forward", "region", {"attrs": {"sample": "a", "loss": 0.5}}),
                (5, "synced", "mark", {}),
                (5, "request", "mark", {"attrs": {"sample": "a", "first_token_seconds": 0.1, "decode_seconds": 0.5, "generated_tokens": 9}}),
                (6, "queue", "counter", {"value": 3}),
                (7, "wait", "region", {"task": 3, "error": True}),
                (0, "actor", "window", {}),
                (0, "backward", "region", {"cpu": 10**7}),
                (8, "gc", "gc", {"attrs": {"generation": 2, "count": 1, "busy": 10**8, "collected": 9}}),
                (9, "time.sleep", "stack", {"attrs": {"frames": [["f", "a.py", 3]], "call": "time.sleep", "samples": 4, "cpu": 10**6, "run_queue": 0}}),
                (0, "thread", "usage", {"attrs": {"samples": 4, "dropped": 0, "cpu": 10**7, "run_queue": 10**6}}),
                (0, "process", "usage", {"attrs": {"collections_dropped": 0, "read_bytes": 1, "write_bytes": 2}}),
            ]
        ),
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _status(path: Path, rank: int, run_id: str) -> None:
    path.parent.mkdir(exist_ok=True)
    now = time.time_ns()
    seen = {"outcome": "missed", "reason": "too late", "missed": "2", "steps": "2", "role": None}
    engine = {"kind": "vllm", "name": "http://h:1", "host": "h", "state": "idle", "health": "ok"}
    path.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "run_id": run_id,
                "rank": rank,
                "world_size": 2,
                "host": "h",
                "pid": 7,
                "writer": ended_writer(),
                "started_unix_ns": now,
                "published_unix_ns": now,
                "beat_seconds": 5.0,
                "ended": bool(rank),
                "state": "idle",
                "state_since_unix_ns": now,
                "health": "ok",
                "last_error": "no",
                "recorded_steps": [2],
                "recorded_bytes": 9,
                "step": 3,
                "step_seconds": 0.5,
                "role": "actor",
                "requests": {"a": seen},
                "engines": {"rollout/0": engine},
            }
        )
    )


def _others(step: Path) -> list[dict[str, object]]:
    """Write artifacts of all other kinds and return their manifest entries."""
    folder = step / "ref"
    folder.mkdir(parents=True)
    peaks = {
        "devices": [{"device": 0, "allocated_bytes": 5, "history_peak_bytes": 9, "max_allocated_bytes": 9}]
    }
    (folder / "rank-0.memory.json").write_text(json.dumps(peaks))
    frames = [{"filename": "train.py", "line": 3, "name": "step"}]
    block = {"size": 512, "requested_size": 500, "address": 64, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 64, "total_size": 2**21, "blocks": [block]}
    entry = {"action": "alloc", "addr": 64, "size": 500, "frames": frames, "time_us": BEGIN // 1000}
    snapshot = {"segments": [segment], "device_traces": [[entry]], "stepprof": {"context": "alloc"}}
    (folder / "rank-0.memory.pickle").write_bytes(pickle.dumps(snapshot))
    (folder / "rank-0.nsys-rep").write_bytes(b"NSYS" * 99)
    npu = folder / "rank-0.npu" / "h_7_ascend_pt"
    write_database(npu / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_0.db")
    (npu / "profiler_info_0.json").write_text("{}")
    kinds = {
        "ref/rank-0.memory.json": "memory-summary",
        "ref/rank-0.memory.pickle": "memory-snapshot",
        "ref/rank-0.nsys-rep": "nsys",
        "ref/rank-0.npu/h_7_ascend_pt": "npu-profile",
    }
    return [
        {"path": path, "kind": kind, "bytes": (step / path).stat().st_size, "events": None}
        for path, kind in kinds.items()
    ]


def _engine(run) -> None:
    claim = run.claim(STEP, "rollout", 0, {}, engines=True)
    name = "rollout/replica-0/rank-0.trace.json"
    file = claim.folder / name
    file.parent.mkdir(parents=True)
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "step[DECODE bs=4]", "pid": 1, "tid": 1, "ts": n * 250, "dur": 240}
        for n in range(8)
    ]  # fmt: skip
    file.write_text(json.dumps({"baseTimeNanoseconds": BEGIN, "traceEvents": events}))
    artifact = {"path": name, "kind": "trace", "bytes": file.stat().st_size, "events": 8}
    times = {"start_unix_ns": BEGIN, "end_unix_ns": BEGIN + 10**9, "start_seconds": 0.1, "stop_seconds": 0.2}
    engine = {
        "role": "rollout",
        "occurrence": 1,
        "driver": 0,
        "replica": 0,
        "kind": "vllm",
        "name": "http://h:1",
        "host": "g",
    }
    entry = {**engine, **times, "status": "complete", "health": "ok", "error": None, "artifacts": [artifact]}
    clocks = [
        {"host": host, "boot_id": None, "offset_ns": 5, "error_ns": 50, "method": "ping-pong"}
        for host in "hg"
    ]
    head = {"schema_version": 1, "run_id": "r", "step": STEP, "version": "v1", "writer": ended_writer()}
    claim.write({**head, "windows": [], "engines": [entry], "clocks": clocks})


def _afterwards(run) -> None:
    head = {"schema_version": 1, "run_id": "r", "step": STEP, "writer": ended_writer()}
    manifest = run.path / f"step-{STEP:06d}" / "manifest"
    upload = {
        "path": "actor/rank-0.trace.json.gz",
        "url": "s3://b/a",
        "status": "failed",
        "bytes": 9,
    }
    completion = {
        "command": ["make"],
        "status": "failed",
        "exit_status": 2,
        "seconds": 0.5,
        "output": "no rule",
    }
    gone = {"unix_ns": BEGIN, "reason": "keep_steps = 2", "files": 1, "bytes": 9, "kept": ["a: b"], "paths": ["actor/x"]}  # fmt: skip
    for name, content in [
        ("uploads.json", {"uploads": [{**upload, "error": "no network"}]}),
        ("on-complete.json", {"completions": [completion]}),
        ("pruned.json", {"pruned": [gone]}),
    ]:
        (manifest / name).write_text(json.dumps({**head, **content}))
    after = run.path / "after"
    after.mkdir()
    (after / "uploads.json").write_text(json.dumps({**head, "uploads": [], "files": {"run.json": BEGIN}}))
