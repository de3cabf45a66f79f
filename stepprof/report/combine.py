"""From the digests of all sources to the report of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import stepprof
from stepprof.report.digest import Digest
from stepprof.report.gantt import gantt
from stepprof.report.headlines import ALL_ENGINES, ALL_SAMPLES, headlines
from stepprof.report.idle import idle_times
from stepprof.report.intervals import Intervals
from stepprof.report.ops import merge_ops
from stepprof.report.processes import Process, gather, measurable
from stepprof.report.rollout import MOST_SAMPLES, Batches, rollout, total_curve
from stepprof.report.schema import (
    Finding,
    Report,
    Rollout,
    SourceInfo,
)
from stepprof.report.skew import collective_skew, end_skew, waits_of
from stepprof.report.sums import memory_peaks, overheads, overlaps, region_times, role_times
from stepprof.summary import SESSIONS, engine_label, told_once
from stepprof.timeline.clocks import describe, worst_error
from stepprof.timeline.model import Origin

__all__ = ["combine"]


def combine(
    digests: Sequence[Digest],
    *,
    step: int | None,
    run_id: str = "",
    manifests: Sequence[Mapping[str, Any]] = (),
    findings: Iterable[Finding] = (),
) -> Report:
    """Make the report of one step.

    Args:
        digests: one of each source.
        step: its number; None: nobody knows.
        run_id: of which run.
        manifests: of the step, as `stepprof.manifest.read_step` combines them; none for traces that stepprof did not record.
        findings: what was wrong before any source was read.
    """
    windows = [measurable(window) for manifest in manifests for window in manifest["windows"]]
    engines = told_once([measurable(engine) for manifest in manifests for engine in manifest["engines"]])
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
        roles=role_times(processes, start, end),
        regions=region_times(processes, start, end),
        skew=[*end_skew(processes), *collective_skew(waits)],
        idle=idle_times(processes, whole, engine_roles, waits, engines),
        rollout=_rollouts(processes, start),
        overlap=overlaps(processes),
        ops=merge_ops(_tables(processes, "ops"), "op"),
        kernels=merge_ops(_tables(processes, "kernels"), "kernel"),
        memory=memory_peaks(processes, start),
        overhead=overheads(processes, windows, engines),
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


def _rollouts(processes: Sequence[Process], start: int) -> list[Rollout]:
    """Of each engine, of all together where there are several, and of the samples of each process that bound some."""
    engines: dict[tuple[object, ...], tuple[str, Batches]] = {}
    for process in processes:
        for digest in process.digests:
            if digest.batches is None:
                continue
            origin = digest.origin
            alone = origin.replica is None
            key = (process.label,) if alone else (origin.role, origin.replica, origin.occurrence)
            # the workers of one engine go the same steps
            if key not in engines or engines[key][1].iterations < digest.batches.iterations:
                engines[key] = (process.label, digest.batches)
    rows: list[Rollout | None] = [
        rollout(label, batches.curve(), start, iterations=batches.iterations, peak=batches.peak)
        for label, batches in engines.values()
    ]
    if len(engines) > 1:
        whole = total_curve([batches.curve() for _, batches in engines.values()])
        count = sum(batches.iterations for _, batches in engines.values())
        rows.append(rollout(ALL_ENGINES, whole, start, iterations=count))
    bound = [
        (process.label, digest.samples)
        for process in processes
        for digest in process.digests
        if digest.samples is not None and digest.origin.kind == "spans"
    ]
    # one after the other: they are looked at, not generated together
    together = [(label, samples) for label, samples in bound if samples.curve().value.max(initial=0) > 1]
    for label, samples in together:
        rows.append(rollout(f"samples of {label}", samples.curve(), start, samples=samples.longest))
    if len(together) > 1:
        whole = total_curve([samples.curve() for _, samples in together])
        longest = sorted(
            (sample for _, samples in together for sample in samples.longest),
            key=lambda sample: sample.start - sample.end,
        )
        rows.append(rollout(ALL_SAMPLES, whole, start, samples=longest[:MOST_SAMPLES]))
    return [row for row in rows if row is not None]


def _tables(processes: Sequence[Process], which: str) -> Iterable[tuple[str, Any]]:
    return ((process.label, getattr(digest, which)) for process in processes for digest in process.digests)


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
            if entry.get("kind") in SESSIONS and entry["status"] == "complete":
                continue  # the word of the driver about a rank, which tells of its trace itself
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
