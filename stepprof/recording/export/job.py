"""One export job: its work, its result, and the report from a child process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from stepprof.backends.base import ExportCall, ExportError
from stepprof.host import real_time
from stepprof.host.process_identity import process_start
from stepprof.interrupts import ours
from stepprof.recording.export.fork import Send
from stepprof.run.model import Artifact, Outcome

OnDone = Callable[["ExportResult"], None]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result of a job. It may have an `error` and artifacts: those that exist nevertheless.

    `seconds` is the duration of the job, `stall_seconds` how long `Exporter.submit` blocked its caller,
    `note` a deviation from the request. `outcome` is the status of the capture: `partial` if the error
    leaves usable artifacts, `lost` if another program did not write them.
    """

    artifacts: tuple[Artifact, ...]
    error: str | None
    seconds: float
    stall_seconds: float
    note: str | None = None
    outcome: Outcome = "complete"


class Worker(NamedTuple):
    """The first line of a child: the process that exports, with its start (`process_start`) and its session."""

    pid: int
    start: int | None
    session: int


class Report(NamedTuple):
    """The second line of a child: of the result what only the child knows."""

    artifacts: tuple[Artifact, ...]
    error: str | None
    seconds: float
    outcome: Outcome


@dataclass(slots=True, eq=False)
class ExportJob:
    """A job: the work, the window, and its state."""

    label: str
    thunk: ExportCall | None
    on_done: OnDone
    submitted: float
    stall_seconds: float = 0.0
    note: str | None = None
    in_child: OnDone | None = None
    on_child: Callable[[int], None] | None = None
    threaded: bool = False
    forked_again: bool = False


def perform(thunk: ExportCall | None) -> tuple[tuple[Artifact, ...], str | None, Outcome]:
    """Run the job. Return its artifacts, its error, and the status of the capture. An exception may
    carry the artifacts that exist nevertheless.
    """
    if thunk is None:
        return (), "the export job is gone", "failed"
    try:
        return tuple(thunk()), None, "complete"
    except ours(Exception) as error:  # whatever a backend raises is the outcome of its export
        kept, outcome = (
            ((), "failed") if not isinstance(error, ExportError) else (error.artifacts, error.outcome)
        )
        return kept, f"{type(error).__name__}: {error}", outcome


def report(job: ExportJob, send: Send) -> None:
    """Run the job in a child, send the report to its parent, and call `in_child`."""
    send(Worker(os.getpid(), process_start(os.getpid()), os.getsid(0))._asdict())
    began = real_time.perf_counter()
    artifacts, error, outcome = perform(job.thunk)
    seconds = real_time.perf_counter() - began
    send(
        {
            "artifacts": [asdict(artifact) for artifact in artifacts],
            "error": error,
            "outcome": outcome,
            "seconds": seconds,
        }
    )
    if job.in_child is not None:
        job.in_child(ExportResult(artifacts, error, seconds, job.stall_seconds, job.note, outcome))


def read_worker(data: bytes) -> Worker:
    """Return the process of the first line."""
    return Worker(**json.loads(data.partition(b"\n")[0]))


def read_report(data: bytes) -> Report:
    """Return the report of a child.

    Raises:
        LookupError, ValueError, TypeError: the child ended before its report.
    """
    result = json.loads(data.split(b"\n")[1])
    artifacts = tuple(_artifact(entry) for entry in result["artifacts"])
    return Report(artifacts, result["error"], float(result["seconds"]), result["outcome"])


def _artifact(entry: Mapping[str, object]) -> Artifact:
    events = entry["events"]
    return Artifact(
        path=str(entry["path"]),
        kind=str(entry["kind"]),
        bytes=int(str(entry["bytes"])),
        events=None if events is None else int(str(events)),
    )
