"""One export job: what is to be done, how it is done wherever that is, and how its end is reported from one process to another."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from stepprof.backends.base import ExportCall, ExportError
from stepprof.run.model import Artifact, Outcome

__all__ = ["ExportJob", "ExportResult", "OnDone", "perform", "read_report", "report"]

OnDone = Callable[["ExportResult"], None]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """How a job ended. An `error` may come with artifacts: those that exist nevertheless.

    `seconds` is what the job took, `stall_seconds` how long `Exporter.submit` blocked its caller, `note` what was not done as it was asked for. `outcome` is
    what the capture is by it: `partial` where what the error says is missing is no reason to give up what there is, `lost` where another program was to write it, and did not.
    """

    artifacts: tuple[Artifact, ...]
    error: str | None
    seconds: float
    stall_seconds: float
    note: str | None = None
    outcome: Outcome = "complete"


@dataclass(slots=True, eq=False)
class ExportJob:
    """What is to be done, for whom, and how it goes."""

    label: str
    thunk: ExportCall | None
    on_done: OnDone
    submitted: float
    stall_seconds: float = 0.0
    note: str | None = None
    in_child: OnDone | None = None
    threaded: bool = False


def perform(thunk: ExportCall | None) -> tuple[tuple[Artifact, ...], str | None, Outcome]:
    """Run the job: what it made, what went wrong, and what the capture is by it. An exception may carry the artifacts that exist nevertheless."""
    if thunk is None:
        return (), "the export job is gone", "failed"
    try:
        return tuple(thunk()), None, "complete"
    except Exception as error:  # noqa: BLE001 - whatever a backend raises is the outcome of its export
        kept, outcome = (
            ((), "failed") if not isinstance(error, ExportError) else (error.artifacts, error.outcome)
        )
        return kept, f"{type(error).__name__}: {error}", outcome


def report(job: ExportJob) -> dict[str, object]:
    """The work of a child, and what it tells its parent."""
    began = time.perf_counter()
    artifacts, error, outcome = perform(job.thunk)
    if job.in_child is not None:
        seconds = time.perf_counter() - began
        job.in_child(ExportResult(artifacts, error, seconds, job.stall_seconds, job.note, outcome))
    return {
        "pid": os.getpid(),
        "artifacts": [asdict(artifact) for artifact in artifacts],
        "error": error,
        "outcome": outcome,
        "seconds": time.perf_counter() - began,
    }


def read_report(data: bytes) -> tuple[int, tuple[Artifact, ...], str | None, float, Outcome]:
    """What a child has told: its pid, what it made, what went wrong, how long it took, and what the capture is by it.

    Raises:
        ValueError, KeyError, TypeError: it ended before it could tell.
    """
    told = json.loads(data)
    artifacts = tuple(_artifact(entry) for entry in told["artifacts"])
    return int(told["pid"]), artifacts, told["error"], float(told["seconds"]), told["outcome"]


def _artifact(entry: Mapping[str, object]) -> Artifact:
    events = entry["events"]
    return Artifact(
        path=str(entry["path"]),
        kind=str(entry["kind"]),
        bytes=int(str(entry["bytes"])),
        events=None if events is None else int(str(events)),
    )
