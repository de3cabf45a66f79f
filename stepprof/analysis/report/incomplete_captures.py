"""List captures that do not cover their windows: capped, lost, damaged, or never started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.processes import COVERS, WHOLE, Process, is_of
from stepprof.analysis.report.schema import Shortfall
from stepprof.analysis.report.stop_cost import recorded_steps
from stepprof.run.summary import SESSIONS, engine_label

NOT_A_CAPTURE = "null"
"""The backend that records nothing."""


def shortfalls_of(processes: Sequence[Process], engines: Iterable[Mapping[str, Any]]) -> list[Shortfall]:
    """Return the captures that were selected in the step and are incomplete or missing, and the files that no manifest lists and that were not read to their end."""
    engines = list(engines)
    is_listed = bool(engines) or any(process.manifest_windows for process in processes)
    found = [
        each
        for process in processes
        for window in process.manifest_windows
        if (each := _of_window(process, window))
    ]
    found += [
        Shortfall(
            process.label, "cut" if _of_file(short) == "damaged" else _of_file(short), None, None, None, None
        )
        for process in processes
        if (process.kind == "trace" or not is_listed)
        and (short := [each for each in process.digests if each.origin.kind != "spans" and not each.whole])
    ]
    steps = recorded_steps(processes)
    for engine in engines:
        whole = engine["status"] in WHOLE and engine["capped_by"] is None
        if whole or (engine["kind"] in SESSIONS and engine["status"] in WHOLE):
            continue
        recorded = _seconds(engine["start_unix_ns"], engine["end_unix_ns"])
        if engine["status"] not in COVERS:
            recorded = None
        label, capped = engine_label(engine), engine["capped_by"]
        by_itself = capped == "engine" and recorded is not None
        found.append(
            Shortfall(
                label,
                engine["status"],
                capped,
                engine["error"],
                None
                if by_itself
                else recorded,  # the capture ended before its window, so the manifest does not have the window's end
                recorded if by_itself else None,
                (steps.get(label) or None) if by_itself else None,
            )
        )
    return found


def _of_window(process: Process, window: Mapping[str, Any]) -> Shortfall | None:
    status, capped = window["status"], window["capped_by"]
    short = [
        digest
        for digest in process.digests
        if digest.origin.kind != "spans" and not digest.whole and is_of(window, digest.origin.path)
    ]
    if (status == "joined" or window["backend"] == NOT_A_CAPTURE) or (
        status in WHOLE and capped is None and not short
    ):
        return None
    start = window["start_unix_ns"]
    end = window["end_unix_ns"]
    own, early = None, False
    rest: dict[str, float] = {}
    if start is not None:  # the spans have the window's own end
        begin = int(start) - process.offset_ns
        spans = [each for each in process.windows if each.ends and each.role == window["role"]]
        nearest = min(spans, key=lambda each: abs(each.start - begin), default=None)
        if nearest is not None and nearest.end > begin:
            own, early = nearest.end - nearest.start, nearest.early
            if capped is not None and end is not None:
                rest = _regions(process, int(end) - process.offset_ns, nearest.end)
    recorded = _seconds(start, end) if status in COVERS and not short else None
    return Shortfall(
        label=process.label,
        status=_of_file(short) if short and status in WHOLE else status,
        capped_by=capped,
        reason=window["error"],
        recorded=recorded,
        window=None
        if own is None or early
        else own / 1e9,  # the whole length of a window that ended early is not known
        early=early,
        regions=rest,
    )


def _regions(process: Process, begin: int, until: int) -> dict[str, float]:
    """Return the seconds of the outermost regions of a process between two times, from its spans, the longest first."""
    found: Counter[str] = Counter()
    for nest in (digest.nest for digest in process.digests if digest.origin.kind == "spans"):
        for start, end, place in [] if nest is None else nest.stretches():
            spent = min(end, until) - max(start, begin)
            if nest is not None and spent > 0 and (path := nest.path(place)):
                found[path[0]] += spent
    return {name: nanoseconds / 1e9 for name, nanoseconds in found.most_common()}


def _of_file(short: Sequence[Digest]) -> str:
    if any(digest.unread for digest in short):
        return "unread"
    return "damaged" if any(digest.events for digest in short) else "unreadable"


def _seconds(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0) / 1e9
