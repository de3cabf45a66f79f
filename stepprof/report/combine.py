"""From the digests of all sources to the report of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import stepprof
from stepprof.report.digest import Digest
from stepprof.report.gantt import gantt
from stepprof.report.headlines import ALL_ENGINES, headlines
from stepprof.report.idle import idle_times
from stepprof.report.intervals import EMPTY, Intervals
from stepprof.report.ops import merge_ops
from stepprof.report.processes import Process, gather
from stepprof.report.rollout import rollout, total_curve
from stepprof.report.schema import (
    Finding,
    Memory,
    Overhead,
    Overlap,
    ProcessTime,
    Report,
    Rollout,
    SourceInfo,
    TimeOf,
)
from stepprof.report.skew import collective_skew, end_skew, waits_of
from stepprof.summary import SESSIONS, engine_label, told_once
from stepprof.timeline.clocks import describe, worst_error
from stepprof.timeline.model import Origin

__all__ = ["combine"]

MOST_REGIONS = 200


def combine(
    digests: Sequence[Digest],
    *,
    step: int,
    run_id: str = "",
    manifests: Sequence[Mapping[str, Any]] = (),
    findings: Iterable[Finding] = (),
) -> Report:
    """Make the report of one step.

    Args:
        digests: one of each source.
        step: its number.
        run_id: of which run.
        manifests: of the step, as `stepprof.manifest.read_step` combines them; none for traces that stepprof did not record.
        findings: what was wrong before any source was read.
    """
    windows = [window for manifest in manifests for window in manifest["windows"]]
    engines = told_once([engine for manifest in manifests for engine in manifest["engines"]])
    processes = gather(digests, windows)
    start, end = _bounds(processes)
    whole = Intervals.one(start, end)
    waits = waits_of(processes)
    engine_roles = frozenset(
        {engine["role"] for engine in engines if engine["kind"] not in SESSIONS}
        | {process.origin.role for process in processes if process.kind == "engine"}
    )
    alignments = [digest.alignment for digest in digests]
    report = Report(
        run_id=run_id,
        step=step,
        start_unix_ns=start,
        seconds=(end - start) / 1e9,
        clock=describe(alignments),
        clock_error_ns=worst_error(alignments),
        stepprof=stepprof.__version__,
        version=next(
            (manifest["version"] for manifest in manifests if manifest["version"] is not None), None
        ),
        sources=[*(_source(digest) for digest in digests), *_without_trace(windows, engines)],
        gantt=gantt(processes, start),
        roles=_roles(processes, start, end),
        regions=_regions(processes, start, end),
        skew=[*end_skew(processes), *collective_skew(waits)],
        idle=idle_times(processes, whole, engine_roles, waits),
        rollout=_rollouts(processes, start),
        overlap=_overlaps(processes),
        ops=merge_ops(_tables(processes, "ops"), "op"),
        kernels=merge_ops(_tables(processes, "kernels"), "kernel"),
        memory=_memory(processes, start),
        overhead=_overheads(processes, windows, engines),
        findings=[
            *findings,
            *(Finding(digest.origin.path, problem) for digest in digests for problem in digest.findings),
            *_left_out(digests),
        ],
    )
    return msgspec.structs.replace(report, headlines=headlines(report))


def _bounds(processes: Sequence[Process]) -> tuple[int, int]:
    """The step: from the first window to the last, spans of the step included; without any, whatever was traced."""
    edges = [(window.start, window.end) for process in processes for window in process.windows]
    spans = [digest for process in processes for digest in process.digests if digest.origin.kind == "spans"]
    everything = [digest for process in processes for digest in process.digests]
    for digest in spans if edges or spans else everything:
        if digest.start is not None and digest.end is not None:
            edges.append((digest.start, digest.end))
    if not edges:
        edges = [(digest.start or 0, digest.end or 0) for digest in everything if digest.start is not None]
    return min((start for start, _ in edges), default=0), max((end for _, end in edges), default=0)


def _times(
    parts: Mapping[tuple[str | None, str | None], Sequence[tuple[Process, Intervals, int, int]]],
    start: int,
    end: int,
) -> list[TimeOf]:
    rows = []
    for (role, region), entries in parts.items():
        when = EMPTY
        per_process = []
        for process, covered, calls, nanoseconds in entries:
            when |= covered
            last = int(covered.end[-1]) if len(covered) else start
            per_process.append(ProcessTime(process.label, nanoseconds / 1e9, calls, (last - start) / 1e9))
        seconds = min(when.total, sum(entry[3] for entry in entries)) / 1e9
        share = seconds * 1e9 / (end - start) if end > start else 0.0
        rows.append(TimeOf(role, region, seconds, share, per_process))
    return rows


def _roles(processes: Sequence[Process], start: int, end: int) -> list[TimeOf]:
    """In the order in which they begin."""
    parts: dict[tuple[str | None, str | None], list[tuple[Process, Intervals, int, int]]] = defaultdict(list)
    first: dict[str | None, int] = {}
    for process in processes:
        for role in {window.role for window in process.windows}:
            when = process.in_role(role)
            calls = sum(window.role == role for window in process.windows)
            parts[role, None].append((process, when, calls, when.total))
            begins = min(window.start for window in process.windows if window.role == role)
            first[role] = min(begins, first.get(role, begins))
    ordered = sorted(parts, key=lambda key: (key[0] is not None, first[key[0]], key[0] or ""))
    return _times({key: parts[key] for key in ordered}, start, end)


def _regions(processes: Sequence[Process], start: int, end: int) -> list[TimeOf]:
    """The longest first."""
    parts: dict[tuple[str | None, str | None], dict[str, tuple[Process, Intervals, int, int]]] = defaultdict(
        dict
    )
    for process in processes:
        for region in process.regions:
            entries = parts[region.role, region.name]
            when = Intervals.unpack(region.when)
            if process.label in entries:  # of several captures
                _, known, calls, covered = entries[process.label]
                entries[process.label] = (
                    process,
                    known | when,
                    calls + region.calls,
                    covered + region.covered,
                )
            else:
                entries[process.label] = (process, when, region.calls, region.covered)
    rows = _times({key: list(entries.values()) for key, entries in parts.items()}, start, end)
    rows.sort(key=lambda row: (-row.seconds, row.region or ""))
    return rows[:MOST_REGIONS]


def _rollouts(processes: Sequence[Process], start: int) -> list[Rollout]:
    """Of each engine, of all together where there are several, and of the samples of each process that bound some."""
    engines: dict[tuple[object, ...], tuple[Process, Digest]] = {}
    rows: list[Rollout | None] = []
    for process in processes:
        for digest in process.digests:
            if digest.batches is None:
                continue
            origin = digest.origin
            key = (
                (origin.role, origin.replica, origin.occurrence)
                if origin.replica is not None
                else (process.label,)
            )
            known = engines.get(key)
            # the workers of one engine go the same steps
            if (
                known is None
                or known[1].batches is None
                or known[1].batches.iterations < digest.batches.iterations
            ):
                engines[key] = (process, digest)
    curves = []
    for process, digest in engines.values():
        if digest.batches is not None:
            curves.append(digest.batches.curve())
            rows.append(
                rollout(
                    process.label,
                    curves[-1],
                    start,
                    iterations=digest.batches.iterations,
                    peak=digest.batches.peak,
                )
            )
    if len(curves) > 1:
        count = sum(digest.batches.iterations for _, digest in engines.values() if digest.batches)
        rows.append(rollout(ALL_ENGINES, total_curve(curves), start, iterations=count))
    for process in processes:
        for digest in process.digests:
            if digest.samples is not None and digest.origin.kind == "spans":
                curve = digest.samples.curve()
                # one after the other: they are looked at, not generated together
                if curve.value.max(initial=0) > 1:
                    label = f"samples of {process.label}"
                    rows.append(rollout(label, curve, start, samples=digest.samples.longest))
    return [row for row in rows if row is not None]


def _overlaps(processes: Sequence[Process]) -> list[Overlap]:
    rows = []
    for process in processes:
        for digest in process.digests:
            work = digest.work
            if work is None or digest.start is None or digest.end is None:
                continue
            if not work.communication and work.device == "cpu":
                continue
            captured = digest.end - digest.start
            rows.append(
                Overlap(
                    label=_of_role(process, digest),
                    device=work.device,
                    compute=work.compute / 1e9,
                    communication=work.communication / 1e9,
                    overlapped=work.overlapped / 1e9,
                    exposed=(work.communication - work.overlapped) / 1e9,
                    busy_share=work.busy / captured if captured else None,
                )
            )
    return rows


def _of_role(process: Process, digest: Digest) -> str:
    """A process that was captured in several roles is told apart by them."""
    captured = {each.origin.role for each in process.digests if each.origin.kind == digest.origin.kind}
    return process.label if len(captured) == 1 else f"{process.label} in {digest.origin.role or 'the step'}"


def _tables(processes: Sequence[Process], which: str) -> Iterable[tuple[str, Any]]:
    return ((process.label, getattr(digest, which)) for process in processes for digest in process.digests)


def _memory(processes: Sequence[Process], start: int) -> list[Memory]:
    rows: dict[tuple[str, str], Memory] = {}
    for process in processes:
        for digest in process.digests:
            for device, peak, at in ((peak.device, peak.peak, peak.at) for peak in digest.memory):
                known = rows.get((process.label, device))
                if known is None or peak > known.peak_bytes:
                    rows[process.label, device] = Memory(process.label, device, peak, (at - start) / 1e9)
    return sorted(rows.values(), key=lambda row: -row.peak_bytes)


def _overheads(
    processes: Sequence[Process], windows: Sequence[Mapping[str, Any]], engines: Sequence[Mapping[str, Any]]
) -> list[Overhead]:
    labels = {id(window): process.label for process in processes for window in process.told}
    sums: dict[str, dict[str, float | None]] = {}
    for window in windows:
        label = labels.get(id(window)) or Origin("rank", "", role=window["role"], rank=window["rank"]).label
        _add(sums, label, {key: window[f"{key}_seconds"] for key in ("stall", "wait", "export")})
    for engine in engines:
        if engine["status"] != "joined":
            _add(sums, engine_label(engine), {key: engine[f"{key}_seconds"] for key in ("start", "stop")})
    rows = [
        Overhead(
            label,
            times.get("stall"),
            times.get("wait"),
            times.get("export"),
            times.get("start"),
            times.get("stop"),
        )
        for label, times in sums.items()
    ]
    return [row for row in rows if any((row.stall, row.wait, row.export, row.start, row.stop))]


def _add(sums: dict[str, dict[str, float | None]], label: str, times: Mapping[str, float | None]) -> None:
    known = sums.setdefault(label, {})
    for key, seconds in times.items():
        if seconds is not None:
            known[key] = (known.get(key) or 0.0) + seconds


def _source(digest: Digest) -> SourceInfo:
    origin, alignment = digest.origin, digest.alignment
    return SourceInfo(
        label=origin.label,
        kind=origin.kind,
        path=origin.path,
        role=origin.role,
        rank=origin.rank,
        replica=origin.replica,
        host=origin.host,
        status=digest.status,
        events=digest.events,
        bytes=digest.bytes,
        alignment=alignment.method,
        offset_ns=alignment.offset_ns,
        error_ns=alignment.error_ns,
    )


def _without_trace(
    windows: Sequence[Mapping[str, Any]], engines: Sequence[Mapping[str, Any]]
) -> Iterable[SourceInfo]:
    """Captures that should have brought a trace and did not."""
    for kind, entries in (("rank", windows), ("engine", engines)):
        for entry in entries:
            if entry["artifacts"] or entry["status"] == "joined" or entry.get("backend") == "null":
                continue
            if kind == "rank":
                label = Origin(
                    "rank", "", role=entry["role"], rank=entry["rank"], occurrence=entry["occurrence"] or 1
                ).label
            else:
                label = engine_label(entry)
            yield SourceInfo(
                label, kind, None, entry["role"], entry["rank"], entry.get("replica"), entry["host"], entry["status"],
                events=0, bytes=None, alignment="", offset_ns=0, error_ns=None,
            )  # fmt: skip


def _left_out(digests: Sequence[Digest]) -> Iterable[Finding]:
    for digest in digests:
        if digest.calls.left_out:
            yield Finding(
                digest.origin.path,
                f"{digest.calls.left_out} collectives are more than are matched across ranks: who waited for whom inside them is not told",
            )
