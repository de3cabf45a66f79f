"""Build run directories as a recording leaves them, for the tests of their readers. They are
written through the same claims.
"""

from __future__ import annotations

import gzip
import json
import time

from stepprof.host.process_identity import writer_identity
from stepprof.run.layout import open_run

TRACE = json.dumps(
    {
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [{"name": "aten::add", "ph": "X", "ts": 1, "dur": 2}] * 3,
    }
).encode()


def make_run(output_dir, run_id="r", **description):
    return open_run(output_dir, run_id=run_id, rank=0, world_size=2, environ={}, description=description)


def ended_writer():
    """Return the identity of a process of this host that has ended."""
    return {**writer_identity(), "pid_start": 1}


def record(
    run, step=2, role="actor", rank=0, *, data=None, writer=None, version=None, backend="torch", **window
):
    """Write one window with its trace, or without one (data=b""). Return the claim."""
    data = gzip.compress(TRACE) if data is None else data
    claim = run.claim(step, role, rank, {})
    artifacts = []
    if data:
        file = claim.folder / f"{claim.stem}.trace.json.gz"
        file.write_bytes(data)
        artifacts = [
            {
                "path": file.relative_to(claim.folder).as_posix(),
                "kind": "torch-trace",
                "bytes": len(data),
                "events": 3,
            }
        ]
    entry = {
        "role": role,
        "occurrence": 1,
        "rank": rank,
        "world_size": 2,
        "host": "h",
        "pid": 7,
        "thread": 7,
        "backend": backend,
        "status": "complete",
        "error": None,
        "body_error": None,
        "start_unix_ns": 1_700_000_000_000_000_000,
        "end_unix_ns": 1_700_000_001_500_000_000,
        "wait_seconds": 0.0,
        "stall_seconds": 0.012,
        "export_seconds": 0.25,
        "capped_by": None,
        "artifacts": artifacts,
        "capture": None,
        **window,
    }
    claim.write(
        {
            "schema_version": 1,
            "run_id": run.run_id,
            "step": step,
            "version": version,
            "writer": writer or ended_writer(),
            "windows": [entry],
            "engines": [],
            "clocks": [],
        }
    )
    return claim


def record_engine(run, replica=0, *, step=2, role="rollout", data=None, files=("rank-0",), **engine):
    """Return the entry of one engine with its files, or without one (data=b""), for `tell_engines`."""
    data = gzip.compress(TRACE, mtime=0) if data is None else data
    artifacts = []
    if data:
        folder, stem = run.engine_folder(step, role, replica)
        for name in files:
            path = f"{stem}/{name}.trace.json.gz"
            (folder / path).write_bytes(data)
            artifacts.append({"path": path, "kind": "trace", "bytes": len(data), "events": 3})
    return {
        "role": role,
        "occurrence": 1,
        "replica": replica,
        "kind": "vllm",
        "name": f"http://node-{replica}:8000",
        "host": f"node-{replica}",
        "status": "complete",
        "health": "ok",
        "error": None,
        "body_error": None,
        "start_unix_ns": 1_700_000_000_000_000_000,
        "end_unix_ns": 1_700_000_001_500_000_000,
        "start_seconds": 0.003,
        "stop_seconds": 1.25,
        "capped_by": None,
        "artifacts": artifacts,
        "capture": None,
        **engine,
    }


def tell_engines(run, *engines, step=2, role="rollout", rank=0, writer=None, clocks=()):
    """Write the fragment of the process that drives these engines. Return the claim."""
    claim = run.claim(step, role, rank, {}, engines=True)
    claim.write(
        {
            "schema_version": 1,
            "run_id": run.run_id,
            "step": step,
            "version": None,
            "writer": writer or ended_writer(),
            "windows": [],
            "engines": [{"driver": rank, **engine} for engine in engines],
            "clocks": [{"host": "h", "offset_ns": 0, "error_ns": 50, "method": "local"}, *clocks],
        }
    )
    return claim


def write_spans(run, rank, *spans, **who):
    """Write a file of spans with its header."""
    header = {"schema_version": 1, "kind": "spans", "run_id": run.run_id, "rank": rank, "host": "h", "pid": 7}
    header.update(who)
    lines = [json.dumps(line) + "\n" for line in (header, *spans)]
    run.spans_path(rank).write_text("".join(lines))


def tell_status(run, rank=0, *, step=None, ended=False, writer=None, **more):
    """Write the status of a process, by default of a living one."""
    now = time.time_ns()
    content = {
        "started_unix_ns": now,
        "published_unix_ns": now,
        "run_id": run.run_id,
        "rank": rank,
        "step": step,
    }
    content |= {"ended": ended, "writer": writer or writer_identity(), **more}
    path = run.status_path(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def region(name, seconds, step=2, role="actor", **more):
    """Return the span of a region."""
    return {
        "name": name,
        "kind": "region",
        "start": 1_700_000_000_000_000_000,
        "dur": int(seconds * 1e9),
        "step": step,
        "role": role,
        **more,
    }


def note(tmp_path, text="$STEPPROF_STEP $STEPPROF_STATUS"):
    """Return a command that writes a line, and a function that returns the lines."""
    path = tmp_path / "ran"
    return ["sh", "-c", f'echo "{text}" >> {path}'], lambda: path.read_text().splitlines() if path.exists() else []  # fmt: skip
