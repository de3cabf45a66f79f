"""Check traces that no manifest lists: each is read to its end, as `stepprof merge` reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stepprof.analysis.artifact_check import Checked, check_trace
from stepprof.analysis.timeline.find import Found, Input
from stepprof.analysis.timeline.npu_database import DatabaseStream
from stepprof.analysis.timeline.raw import TraceStream
from stepprof.analysis.timeline.workers import each_in_worker
from stepprof.formats.npu_folder import is_database


@dataclass(frozen=True, slots=True)
class CheckedTrace:
    """One trace, and what was found."""

    path: str
    bytes: int
    events: int
    checked: Checked


def check_traces(
    found: Found, *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> list[CheckedTrace]:
    """Check each trace.

    Args:
        found: by `stepprof.analysis.timeline.find.find`.
        workers: maximum number of processes; None: one per core, and only this one if there is little to read.
        progress: called with (traces read, all traces) after each.
    """
    tasks = [(each,) for each in found.inputs]
    sizes = [each.bytes for each in found.inputs]
    results = each_in_worker(check_input, tasks, sizes=sizes, workers=workers, progress=progress)
    return [
        result
        if isinstance(result, CheckedTrace)
        else CheckedTrace(each.origin.path, each.bytes, 0, Checked(f"could not be checked: {result.reason}"))
        for each, result in zip(found.inputs, results, strict=True)
    ]


def check_input(wanted: Input) -> CheckedTrace:
    """Check one trace: the work of one worker."""
    path = Path(wanted.paths[0])
    stream = DatabaseStream(path) if is_database(path.name) else TraceStream(path)
    checked, events = check_trace(stream, path.name, base_ns=0)
    return CheckedTrace(wanted.origin.path, wanted.bytes, events, checked)
