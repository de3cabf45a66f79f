"""Write the recording of a step: run.json, manifest fragments, span files and traces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from truth.model import SECOND, STEP, Engine, Process, Truth, Window
from truth.tracing import engine_trace, rank_trace

__all__ = ["write"]

RUN = "r"


def write(truth: Truth, folder: Path, *, step: int = STEP) -> Path:
    """Write the run of a step (or one more occurrence of the step) and return its folder."""
    run = folder / RUN
    (run / "spans").mkdir(parents=True, exist_ok=True)
    if not (run / "run.json").exists():
        first = truth.processes[0]
        windows_in_manifest = {
            "schema_version": 1,
            "run_id": RUN,
            "rank": first.rank,
            "world_size": truth.world,
            "writer": _writer(first),
            "created_unix_ns": first.machine.own(_began(truth)) - 60 * SECOND,
        }
        (run / "run.json").write_text(json.dumps(windows_in_manifest))
    for process in truth.processes:
        if process.recorded:
            _process(truth, run, process, step)
    if truth.engines:
        _engines(truth, run, step)
    return run


def _process(truth: Truth, run: Path, process: Process, step: int) -> None:
    for number, window in enumerate(process.windows_in_manifest(truth)):
        windows_in_manifest = _entry(truth, run, process, window, step)
        # only the first fragment of a process compares clocks
        clocks = _clocks(truth, process) if number == 0 else []
        stem = f"{window.role or 'step'}-rank-{process.rank}"
        _fragment(run, step, stem, process, windows=[windows_in_manifest], clocks=clocks)
    if truth.spans and process.has_spans:
        _spans(run, process, step)


def _fragment(run: Path, step: int, stem: str, process: Process, **lists: object) -> None:
    folder = run / f"step-{step:06d}" / "manifest"
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = folder / f"{stem}.{number}.json"
    content = {
        "schema_version": 1,
        "run_id": RUN,
        "step": step,
        "version": None,
        "writer": _writer(process),
        "windows": [],
        "engines": [],
        "clocks": [],
        **lists,
    }
    path.write_text(json.dumps(content))


def _entry(truth: Truth, run: Path, process: Process, window: Window, step: int) -> dict[str, object]:
    own = process.machine.own
    lost = window.status == "lost"
    end = None if lost else own(window.end if window.captured is None else window.captured)
    if process.rank == "driver":
        end = own(window.end)
    arms = window.arm > 0
    return {
        "role": window.role,
        "occurrence": window.occurrence,
        "visit": truth.visit,
        "rank": process.rank,
        "world_size": None if process.rank == "driver" else truth.world,
        "host": process.machine.host,
        "pid": process.pid,
        "thread": process.pid,
        "backend": "null" if process.rank == "driver" or not truth.shape.traces else "torch",
        "status": window.status,
        "error": "the process ended before the capture was stopped" if lost else None,
        "body_error": "ValueError('no more samples')" if window.raised else None,
        "start_unix_ns": own(window.start),
        "end_unix_ns": end,
        "wait_seconds": 0.0,
        "arm_seconds": window.arm / 1e9,
        "arm_unix_ns": own(window.start - window.begin - window.arm) if arms else None,
        "start_seconds": window.begin / 1e9,
        "stall_seconds": None if lost else window.stall / 1e9,
        "export_seconds": None if lost else 0.01,
        "cpu_seconds": None if lost or window.cpu is None else window.cpu / 1e9,
        "thread_cpu_seconds": None if lost or window.cpu is None else window.cpu / 1e9,
        "capped_by": window.capped_by,
        "artifacts": []
        if window.captured is None or process.rank == "driver" or window.joined or not truth.shape.traces
        else [_trace(truth, run, process, window, step)],
        "capture": {"step": step, "stem": f"step/rank-{process.rank}"} if window.joined else None,
    }


def _trace(truth: Truth, run: Path, process: Process, window: Window, step: int) -> dict[str, object]:
    folder = run / f"step-{step:06d}"
    below = folder / (window.role or "step")
    below.mkdir(parents=True, exist_ok=True)
    path, number = below / f"rank-{process.rank}.trace.json.gz", 1
    while path.exists():
        number += 1
        path = below / f"rank-{process.rank}.{number}.trace.json.gz"
    data, events = rank_trace(truth, process, window, RUN, step)
    path.write_bytes(data)
    return {
        "path": path.relative_to(folder).as_posix(),
        "kind": "torch-trace",
        "bytes": len(data),
        "events": events,
    }


def _spans(run: Path, process: Process, step: int) -> None:
    own = process.machine.own
    header = {
        "schema_version": 1,
        "kind": "spans",
        "run_id": RUN,
        "rank": process.rank,
        "host": process.machine.host,
        "pid": process.pid,
        "boot_id": process.machine.boot,
        "pid_namespace": process.pid_namespace,
    }
    lines: list[Mapping[str, object]] = [header]
    first, last = process.windows[0], process.windows[-1]
    roles = dict.fromkeys(window.role for window in process.windows)
    # the loop has a step before and a step after, each with the same roles
    for role in roles:
        start = own(first.start) - 10 * SECOND
        lines.append(_span(role or "step", "window", start, SECOND, process, role, step - 1))
    for region in sorted(process.regions, key=lambda region: region.end):
        if process.ended(region.end):
            continue
        lines.append(
            _span(
                region.name,
                "region",
                own(region.start),
                region.end - region.start,
                process,
                region.role,
                step,
            )
        )
    for window in process.windows:
        if process.ended(window.end):
            continue
        lines.append(
            _span(
                window.role or "step",
                "window",
                own(window.start),
                window.end - window.start,
                process,
                window.role,
                step,
            )
        )
    for role in roles if process.killed is None else ():
        start = own(last.end) + 10 * SECOND
        lines.append(_span(role or "step", "window", start, SECOND, process, role, step + 1))
    number = 1
    while (path := run / "spans" / f"rank-{process.rank}.{number:06d}.jsonl").exists():
        number += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _span(
    name: str, kind: str, start: int, length: int, process: Process, role: str | None, step: int
) -> dict[str, object]:
    return {
        "name": name,
        "kind": kind,
        "thread": process.pid,
        "task": None,
        "step": step,
        "role": role,
        "start": start,
        "dur": length,
    }


def _engines(truth: Truth, run: Path, step: int) -> None:
    driver = truth.first
    windows_in_manifest = []
    for engine in truth.engines:
        windows_in_manifest.append(_engine(truth, run, engine, driver, step))
    _fragment(
        run,
        step,
        f"rollout-engines-rank-{driver.rank}",
        driver,
        engines=windows_in_manifest,
        clocks=_clocks(truth, driver),
    )


def _engine(truth: Truth, run: Path, engine: Engine, driver: Process, step: int) -> dict[str, object]:
    folder = run / f"step-{step:06d}"
    artifacts = []
    number = 1
    while (
        below := folder / engine.role / (f"replica-{engine.replica}" + ("" if number == 1 else f".{number}"))
    ).exists():
        number += 1
    below.mkdir(parents=True)
    for scheduler in engine.schedulers:
        for worker in range(scheduler.workers):
            name = f"rank-{worker}"
            if len(engine.schedulers) > 1:
                name = f"dp-{scheduler.group}-rank-{worker}"
            data, events = engine_trace(engine, scheduler, worker, RUN, step, many=len(engine.schedulers) > 1)
            (below / f"{name}.trace.json.gz").write_bytes(data)
            path = (below / f"{name}.trace.json.gz").relative_to(folder).as_posix()
            artifacts.append({"path": path, "kind": "trace", "bytes": len(data), "events": events})
    own = driver.machine.own
    return {
        "role": engine.role,
        "occurrence": 1,
        "visit": truth.visit,
        "driver": driver.rank,
        "replica": engine.replica,
        "kind": "vllm",
        "name": f"http://{engine.machine.host}:{8000 + engine.replica}",
        "host": engine.machine.host,
        "boot_id": engine.machine.boot,
        "status": "complete",
        "health": "ok",
        "error": None,
        "body_error": None,
        "start_unix_ns": own(engine.start),
        "end_unix_ns": own(engine.end),
        "start_seconds": engine.begin / 1e9,
        "stop_seconds": engine.stop / 1e9,
        "capped_by": engine.capped_by,
        **({"statistics": {"preemptions": engine.preemptions}} if engine.preemptions else {}),
        "artifacts": artifacts,
        "capture": None,
    }


def _clocks(truth: Truth, process: Process) -> list[dict[str, object]]:
    """Return the clocks that a process knows: its own, and, for the first process, those that it compared."""
    here = truth.machines.index(process.machine)
    windows_in_manifest: list[dict[str, object]] = [
        {
            "host": process.machine.host,
            "boot_id": process.machine.boot,
            "offset_ns": 0,
            "error_ns": 50,
            "method": "local",
        }
    ]
    if process is not truth.first:
        return windows_in_manifest
    for one, other, offset, error in truth.comparisons:
        if one == here:
            machine = truth.machines[other]
            windows_in_manifest.append(
                {
                    "host": machine.host,
                    "boot_id": machine.boot,
                    "offset_ns": offset,
                    "error_ns": error,
                    "method": "ping-pong",
                }
            )
    return windows_in_manifest


def _writer(process: Process) -> dict[str, object]:
    return {
        "host": process.machine.host,
        "pid": process.pid,
        "pid_start": 1,
        "boot_id": process.machine.boot,
        "pid_namespace": process.pid_namespace,
    }


def _began(truth: Truth) -> int:
    starts: Sequence[int] = [window.start for process in truth.processes for window in process.windows]
    return min(starts)
