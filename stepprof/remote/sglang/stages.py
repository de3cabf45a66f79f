"""Cut one SGLang trace into prefill and decode, in a process of its own: a parsed trace is large, and parsing blocks all threads.

SGLang's own capture by stage is not used from 0.5.14 on. It stops the prefill capture and starts the decode capture inside a range of its scheduler; torch writes the end of that range
into freed memory, and the scheduler dies within a few windows (seen with 0.5.23: the first time
with two data-parallel replicas, the eighth with one). The trace has the names of the forward steps,
so it can be cut afterwards.

`child` reads a trace of the run, and writes a file for each stage next to it, within a limit on its
memory.
"""

from __future__ import annotations

import bisect
import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepprof.host.own_python import own_python
from stepprof.host.plain_files import open_plain
from stepprof.interrupts import ignored, ours
from stepprof.remote.base import EngineFailure

STAGES = ("prefill", "decode")

CUT_SECONDS = 600.0
"""Timeout of cutting one trace."""
MOST_BYTES = 1 << 30
"""Maximum uncompressed bytes of a trace to cut; parsed, it takes several times as much memory. A larger one is kept whole."""

MOST_MEMORY = 16 << 30
"""Maximum bytes of memory for cutting: parsing may take a hundred times the size of the trace, and training needs the rest."""

_STEP = "step["
_DECODE = "step[DECODE"
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LEVEL = 1
"""Compression level: the files are compressed again when they are moved to the run."""


def cut(trace: Path) -> dict[str, Path]:
    """Cut a trace apart in a separate process. Return the files by their stage; none if it has no
    forward steps. Blocks for at most `CUT_SECONDS`.

    Raises:
        EngineFailure: it cannot be cut; the trace is unchanged.
    """
    parts = _parts(trace)
    _remove(parts.values())
    try:
        subprocess.run(  # noqa: S603 - this Python, with a module of ours
            own_python(f"from {__name__} import child; child()", str(trace), str(MOST_MEMORY)),
            capture_output=True,
            text=True,
            check=True,
            timeout=CUT_SECONDS,
        )
    except ours(OSError, subprocess.SubprocessError) as error:
        _remove(parts.values())
        raise EngineFailure(
            f"the trace {trace} cannot be cut into its stages ({_reason(error)}); it is kept whole"
        ) from error
    return {stage: path for stage, path in parts.items() if path.exists()}


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it takes longer than {error.timeout:g} s"
    if isinstance(error, subprocess.CalledProcessError):
        return str((error.stderr.strip().splitlines() or ["no reason given"])[-1])
    return str(error)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with ignored(OSError):
            path.unlink()


def cut_apart(events: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the events of each stage.

    An event between two forward steps belongs to the first of them, a device event to the step that launched it. Events without a time (the names of threads) are in both.
    """
    steps = sorted(
        (float(event["ts"]), event["name"].startswith(_DECODE))
        for event in events
        if event.get("ph") == "X"
        and str(event.get("name", "")).startswith(_STEP)
        and "gpu" not in str(event.get("cat"))
    )
    if not steps:
        return {}
    starts = [start for start, _ in steps]

    def stage_at(ts: float) -> str:
        return STAGES[steps[max(bisect.bisect_right(starts, ts) - 1, 0)][1]]

    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    parts: dict[str, list[dict[str, Any]]] = {
        stage: [] for stage in STAGES if any(decode == (stage == "decode") for _, decode in steps)
    }
    for event in events:
        if "ts" not in event or event.get("ph") == "M":
            for part in parts.values():
                part.append(event)
            continue
        ts = float(event["ts"])
        if event.get("cat") in _ON_DEVICE:
            ts = launched.get(event.get("args", {}).get("correlation"), ts)
        parts[stage_at(ts)].append(event)
    return parts


def _parts(trace: Path) -> dict[str, Path]:
    return {stage: trace.with_name(f".{trace.name}.{stage}.json.gz") for stage in STAGES}


def main(trace: Path) -> None:
    """Cut a trace apart in this process. Raises SystemExit if it is too large, and any exception that its content causes."""
    with open_plain(trace) as file, gzip.GzipFile(fileobj=file) as stream:
        text = stream.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        sys.exit(f"it has more than {MOST_BYTES} bytes")
    content = json.loads(text)
    del text
    content.pop("stepprof", None)  # written again, with the stage
    apart = cut_apart(content["traceEvents"])
    for stage, path in _parts(trace).items():
        if stage in apart:
            # "x" does not follow a link of another user
            with gzip.open(path, "xt", compresslevel=_LEVEL) as out:
                json.dump({**content, "traceEvents": apart[stage]}, out, indent=1)


def child() -> None:
    """Cut the trace of the command line apart, in the bytes of memory that it states."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[1]
    if allowed == resource.RLIM_INFINITY or allowed > int(sys.argv[2]):
        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), allowed))
    try:
        main(Path(sys.argv[1]))
    except ours(Exception) as error:  # its message may show content of the trace
        sys.exit(type(error).__name__)
