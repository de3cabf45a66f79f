"""Make traces for measurements.

``python -m benchmarks.make_traces FOLDER --events 500000 --ranks 64 --cuda`` makes a run. The first
two ranks are real: two processes of torch's DistributedDataParallel over gloo, recorded through
stepprof. The run's ``traces.json`` says which parts are not real:

* Ranks beyond two are the files of the two real ranks again (hard links) under other numbers, each
  with its own spans and manifest. They serve to measure many sources, not skew.
* ``--cuda`` makes CUDA-shaped traces from the real ones, without a GPU. Every outermost operator
  gets a launch and a kernel with a flow between them, on one stream, in order. Every collective
  gets a kernel with a name of NCCL on another stream. Names, categories, arguments and nesting are
  those of real CUDA traces. The duration of a kernel is derived from its operator's time.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import REPOSITORY

__all__ = ["cuda_shaped", "make_run", "make_traces", "traces_folder"]

STEP = 2
REAL_RANKS = 2
COMPUTE_STREAM, NCCL_STREAM = 7, 20
LAUNCH_US, QUEUE_US = 4.0, 2.5


@functools.cache
def traces_folder() -> Path:
    """Return the folder of the benchmarks' traces: ``$STEPPROF_BENCH_TRACES``, which is kept, or a
    temporary one.
    """
    given = os.environ.get("STEPPROF_BENCH_TRACES")
    if given:
        return Path(given)
    folder = tempfile.TemporaryDirectory(prefix="stepprof-bench-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def make_traces(folder: Path, *, events: int, ranks: int = REAL_RANKS, cuda: bool = False) -> Path:
    """Record a run, or reuse the one that an earlier call made with the same numbers.

    Args:
        folder: the folder of runs of all sizes.
        events: the approximate number of events in all traces of a rank's step.
        ranks: the number of ranks; those beyond two are copies.
        cuda: whether the traces are made CUDA-shaped.

    Returns:
        the run's folder.
    """
    path = folder / f"run-{events}x{ranks}{'-cuda' if cuda else ''}"
    if not (path / "traces.json").is_file():
        real = folder / f"run-{events}x{REAL_RANKS}"
        if not (real / "traces.json").is_file():
            make_run(folder, real.name, events)
        if path != real:
            _derive(real, path, ranks, cuda=cuda)
    return path


def make_run(folder: Path, name: str, events: int) -> None:
    """Record two real ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("STEPPROF")}
    environ |= {"STEPPROF_RUN_ID": name, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(REAL_RANKS), "-m", "benchmarks.traces_child"]
    done = subprocess.run(
        [sys.executable, *command, "--events", str(events), "--output-dir", str(folder.resolve())],
        cwd=REPOSITORY,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the training loop ended with {done.returncode}:\n{done.stderr[-4000:]}")
    _state(folder / name, {"real_ranks": REAL_RANKS, "ranks": REAL_RANKS, "cuda_shaped": False})


def _derive(real: Path, path: Path, ranks: int, *, cuda: bool) -> None:
    """Derive a run from the real one: with more ranks, or with another shape."""
    step = f"step-{STEP:06d}"
    (path / "spans").mkdir(parents=True)
    (path / step / "manifest").mkdir(parents=True)
    _write(path / "run.json", {**_read(real / "run.json"), "run_id": path.name})
    for rank in range(ranks):
        for file in sorted((real / "spans").glob(f"rank-{rank % REAL_RANKS}.*.jsonl")):
            header, _, spans = file.read_text(encoding="utf-8").partition("\n")
            reported = json.loads(header)
            reported |= {"run_id": path.name, "rank": rank, "pid": _pid(reported["pid"], rank)}
            name = file.name.replace(f"-{rank % REAL_RANKS}.", f"-{rank}.")
            (path / "spans" / name).write_text(f"{json.dumps(reported)}\n{spans}", encoding="utf-8")
    events: dict[str, int] = {}
    for fragment in sorted((real / step / "manifest").glob("*.json")):
        content = _read(fragment)
        rank = content["windows"][0]["rank"]
        for copy in range(rank, ranks, REAL_RANKS):
            derived = {**content, "run_id": path.name, "windows": []}
            for window in content["windows"]:
                artifacts = []
                for artifact in window["artifacts"]:
                    relative = artifact["path"].replace(f"rank-{rank}.", f"rank-{copy}.")
                    target = path / step / relative
                    target.parent.mkdir(parents=True, exist_ok=True)
                    first, source = path / step / artifact["path"], real / step / artifact["path"]
                    if target != first:
                        os.link(first, target)
                    elif cuda:
                        events[artifact["path"]] = _shape(source, target)
                    else:
                        os.link(source, target)
                    count = events.get(artifact["path"], artifact["events"])
                    size = target.stat().st_size
                    artifacts.append({**artifact, "path": relative, "bytes": size, "events": count})
                own = {"rank": copy, "pid": _pid(window["pid"], copy), "world_size": ranks}
                derived["windows"].append({**window, **own, "artifacts": artifacts})
            _write(path / step / "manifest" / fragment.name.replace(f"-{rank}.", f"-{copy}."), derived)
    _state(path, {"real_ranks": min(ranks, REAL_RANKS), "ranks": ranks, "cuda_shaped": cuda})


def _pid(pid: int, rank: int) -> int:
    """Return the process id of a real rank, or a new one for a copy."""
    return pid + 10_000_000 * (rank // REAL_RANKS)


def _shape(source: Path, target: Path) -> int:
    """Write the CUDA-shaped trace and return its number of events."""
    from isal import igzip

    with igzip.open(source, "rb") as file:
        trace = cuda_shaped(json.loads(file.read()))
    with igzip.open(target, "wb", compresslevel=1) as file:
        file.write(json.dumps(trace, separators=(",", ":")).encode())
    return len(trace["traceEvents"])


def cuda_shaped(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace with the events that a GPU would have added. The module's docstring says
    what is fabricated.
    """
    events: list[dict[str, Any]] = trace["traceEvents"]
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    operators = [event for event in complete if event.get("cat") == "cpu_op"]
    collectives = [event for event in complete if str(event.get("name", "")).startswith("gloo:")]
    end_of: dict[object, float] = {}
    free = {COMPUTE_STREAM: 0.0, NCCL_STREAM: 0.0}
    added: list[dict[str, Any]] = []
    outermost: list[dict[str, Any]] = []
    within: dict[object, float] = {}
    innermost: dict[tuple[object, float], dict[str, Any]] = {}
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= end_of.get(event["tid"], 0.0):
            end_of[event["tid"]] = event["ts"] + event["dur"]
            within[event["tid"]] = event["ts"]
            outermost.append(event)
        innermost[event["tid"], within[event["tid"]]] = event
    work = [(event, COMPUTE_STREAM) for event in outermost] + [(event, NCCL_STREAM) for event in collectives]
    for correlation, (event, stream) in enumerate(sorted(work, key=lambda pair: pair[0]["ts"]), start=1):
        # the last inner operator launches, so that a launch is never inside the time of another
        # operator
        launching = innermost.get((event["tid"], event["ts"]), event)
        launch = launching["ts"] + min(1.0, launching["dur"] / 4)
        start = round(max(launch + LAUNCH_US + QUEUE_US, free[stream]), 3)
        seconds = round(max(1.0, event["dur"] * 0.8), 3)
        free[stream] = start + seconds + 0.01  # floats of these times are exact within a nanosecond
        name = _kernel_name(event["name"], stream)
        place = {"pid": event["pid"], "tid": event["tid"]}
        device = {"pid": 0, "tid": stream}
        arguments = {"stream": stream, "device": 0, "context": 1, "correlation": correlation}
        shape = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
        launch_us = round(min(LAUNCH_US, launching["dur"] / 2), 3)
        added += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **place, "ts": round(launch, 3),
             "dur": launch_us, "args": {"correlation": correlation, "cbid": 211}},
            {"ph": "X", "cat": "kernel", "name": name, **device, "ts": start, "dur": seconds,
             "args": {**arguments, **shape}},
            {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": correlation, **place, "ts": round(launch, 3)},
            {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": correlation, **device, "ts": start, "bp": "e"},
        ]  # fmt: skip
    for stream in free:
        added.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": stream, "ts": 0, "args": {"name": f"stream {stream}"}})  # fmt: skip
    added.append({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}})
    added.append({"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}})  # fmt: skip
    properties = [{"id": 0, "name": "CUDA-shaped, no device", "totalGlobalMem": 0}]
    return {**trace, "deviceProperties": properties, "traceEvents": events + added}


def _kernel_name(operator: str, stream: int) -> str:
    if stream == NCCL_STREAM:
        return f"ncclDevKernel_{operator.removeprefix('gloo:').title().replace('_', '')}_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    base = operator.removeprefix("aten::")
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{base}_functor<float> >(int)"


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _state(path: Path, content: dict[str, Any]) -> None:
    """Describe which parts of the run are real. Written last, so that an interrupted run is not mistaken for a complete one."""
    _write(path / "traces.json", content)


def main() -> int:
    """Make a run, and print its folder."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.make_traces", description="Make traces to measure with."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=100_000, help="per rank, roughly; by default 100,000")
    parser.add_argument(
        "--ranks", type=int, default=REAL_RANKS, help="those beyond two are copies; by default 2"
    )
    parser.add_argument("--cuda", action="store_true", help="CUDA-shaped (made from the real ones)")
    given = parser.parse_args()
    print(make_traces(given.folder, events=given.events, ranks=given.ranks, cuda=given.cuda))
    return 0


if __name__ == "__main__":
    sys.exit(main())
