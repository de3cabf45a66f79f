"""Combine the digests of all sources into the report of the step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec

from stepprof.analysis.findings.catalogue import findings_of, worth
from stepprof.analysis.findings.facts import Facts, Unfinished
from stepprof.analysis.findings.neighbours import Neighbours, no_rollout
from stepprof.analysis.findings.signs import Signs
from stepprof.analysis.findings.together import folded
from stepprof.analysis.report.allocators import Counts, allocators_of
from stepprof.analysis.report.critical_path import Segment, critical_path
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.division import divide
from stepprof.analysis.report.engines import engines_of, recomputing_of, without_steps
from stepprof.analysis.report.gantt import gantt
from stepprof.analysis.report.headlines import sentences
from stepprof.analysis.report.idle import idle_times
from stepprof.analysis.report.incomplete_captures import NOT_A_CAPTURE, shortfalls_of
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.neighbourhood import neighbourhood_of
from stepprof.analysis.report.ops import merge_ops
from stepprof.analysis.report.processes import Process, engine_of, gather, measurable
from stepprof.analysis.report.profiler_options import options_of
from stepprof.analysis.report.region_rows import region_rows
from stepprof.analysis.report.replaced import replaced
from stepprof.analysis.report.schema import (
    Finding,
    Island,
    Part,
    PathSegment,
    Problem,
    RecordedProcess,
    Report,
    Shortfall,
    SourceInfo,
    TimeOf,
)
from stepprof.analysis.report.skew import collective_skew, end_skew, unmatched_times, waits_of
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.stop_cost import stop_costs
from stepprof.analysis.report.timelines import DRIVER, timelines
from stepprof.analysis.report.totals import (
    memory_peaks,
    overheads,
    overlaps,
    region_times,
    role_times,
)
from stepprof.analysis.report.unfinished import known_until, last_signs, unfinished
from stepprof.analysis.report.unrecorded import Unrecorded, changes_of
from stepprof.analysis.report.waiting import Waiting
from stepprof.analysis.timeline.clocks import describe, worst_error
from stepprof.analysis.timeline.model import Alignment
from stepprof.run.evidence import Evidence
from stepprof.run.layout import WHOLE_STEP
from stepprof.run.summary import SESSIONS, engine_label, without_references
from stepprof.version import VERSION


def combine(
    digests: Sequence[Digest],
    *,
    step: int | None,
    run_id: str = "",
    manifests: Sequence[Mapping[str, Any]] = (),
    problems: Iterable[Problem] = (),
    placed: Mapping[tuple[object, ...], Alignment] | None = None,
    evidence: Sequence[Evidence] = (),
    neighbours: Neighbours | None = None,
    runs: Sequence[Path] = (),
    counts: Counts | None = None,
) -> Report:
    """Make the report of one step.

    Args:
        digests: one of each source.
        step: its number; None: not known.
        run_id: of which run.
        manifests: of the step, as `stepprof.run.manifest.read_step` combines them; none for traces that stepprof did not record.
        problems: what was wrong before any source was read.
        placed: how the times of each process in the manifests come onto the common clock.
        evidence: of the step, of each process that has some.
        neighbours: the steps around it.
        runs: folders of the run; spans of its other steps are read there.
        counts: of the allocators of devices.
    """
    windows = [measurable(window) for manifest in manifests for window in manifest["windows"]]
    engines = without_references(
        [measurable(engine) for manifest in manifests for engine in manifest["engines"]]
    )
    everyone = gather(digests, windows, placed)
    alignments = [digest.alignment for digest in digests]
    shortfalls = shortfalls_of(everyone, engines)
    waits = waits_of(everyone)
    by_process = {label: waiting for each in waits for label, waiting in each.by_process.items()}
    engine_roles = frozenset(
        {engine["role"] for engine in engines if engine["kind"] not in SESSIONS}
        | {process.origin.role for process in everyone if process.kind == "engine"}
    )
    by_clock = _by_clock(everyone)
    lost = unfinished(everyone)
    signs = last_signs(runs, step) if lost else {}
    parts = [
        _part(
            processes,
            by_process,
            several=len(by_clock) > 1,
            until=known_until((each for each in processes if each in lost), signs),
            engine_roles=engine_roles,
            engines=engines,
            shortfalls=shortfalls,
            evidence=evidence,
            neighbours=neighbours,
        )
        for processes in by_clock
    ]
    parts.sort(key=lambda part: -part[0].seconds)
    islands = [island for island, _ in parts]
    tables: dict[str, Any] = defaultdict(list)
    for _, of in parts:
        for name, rows in of.items():
            tables[name] += rows
    tree = region_rows(everyone, islands[0].seconds if islands else 0.0)
    if len(parts) > 1 and all(process.origin.kind == "trace" for process in everyone):
        tables["findings"] = folded(tables["findings"])
    if lost:  # of a step whose length is not known there are no parts, no shares and no gains
        tables.update(path=[], parts=[], slack=[], findings=map(_without_gain, tables["findings"]))
        tree, tables["roles"], tables["regions"] = (
            [msgspec.structs.replace(row, share=None) for row in rows]
            for rows in (tree, tables["roles"], tables["regions"])
        )
    blameless = frozenset(tables.pop("blameless", ()))
    waits_unrecorded = dict(tables.pop("waits", ()))
    tables["engines"] += without_steps(tables["engines"], engines)
    report = Report(
        run_id=run_id,
        step=step,
        start_unix_ns=islands[0].start_unix_ns if islands else 0,
        seconds=islands[0].seconds if islands else 0.0,
        ended=not lost,
        clock=describe(alignments),
        clock_error_ns=worst_error(alignments),
        stepprof=VERSION,
        version=next(
            (manifest["version"] for manifest in manifests if manifest["version"] is not None), None
        ),
        sources=[*(_source(digest) for digest in digests), *_without_trace(everyone, engines)],
        processes=[_recorded(process, shortfalls) for process in everyone],
        tree=tree,
        skew=[
            *end_skew(everyone, by_process),
            *(row for each in waits for row in collective_skew(each.by_phase)),
        ],
        unmatched=[row for each in waits for row in unmatched_times(each.unmatched)],
        overlap=overlaps(everyone),
        ops=merge_ops(_tables(everyone, "ops"), "op"),
        kernels=merge_ops(_tables(everyone, "kernels"), "kernel"),
        allocators=allocators_of(everyone, counts or {}),
        overhead=overheads(everyone, windows, engines),
        stops=stop_costs(everyone, engines),
        shortfalls=shortfalls,
        problems=[
            *problems,
            *(
                Problem(digest.origin.path, problem, digest.unread)
                for digest in digests
                for problem in digest.findings
            ),
            *_left_out(digests),
        ],
        islands=islands,
        **tables,
    )
    roles = {entry["role"] for entry in (*windows, *engines)} | {each.origin.role for each in everyone}
    notices = [
        *_raised(everyone),
        *replaced(everyone, lost, {each.label for each in shortfalls}),
        *no_rollout(runs, step, roles | {time.role for time in report.roles}),
    ]
    causes = sorted(tables["findings"], key=worth, reverse=True)
    return msgspec.structs.replace(
        report,
        findings=sentences(report, causes, notices, blameless),
        neighbourhood=neighbourhood_of(
            report,
            runs,
            causes,
            everyone,
            Unrecorded.of(
                windows,
                waits_unrecorded,
                {f"{each.host} {each.origin.pid}": each.offset_ns for each in everyone},
            ),
        ),
    )


def _part(
    processes: Sequence[Process],
    waits: Mapping[str, Waiting],
    *,
    several: bool,
    until: int,
    engine_roles: frozenset[str | None],
    engines: Sequence[Mapping[str, Any]],
    shortfalls: Sequence[Shortfall],
    evidence: Sequence[Evidence],
    neighbours: Neighbours | None,
) -> tuple[Island, dict[str, list[Any]]]:
    """Return an island, and the tables of the report that compare its times, by their names.

    Its end is not before `until`, the last sign of life of processes that did not finish the step.
    """
    start, end = _bounds(processes)
    end = max(end, until)
    short = {each.label for each in shortfalls}
    signs = _signs(processes, evidence)
    activities = {label: each.activity() for label, each in signs.items()}
    open_ended = _unfinished(processes, short)
    known = timelines(processes, waits, open_ended, activities)
    path = critical_path(known, start, end, engine_roles)
    rollouts, works, generations = engines_of(processes, start, short, engines)
    graph = StepGraph(known, start, engine_roles)
    facts = Facts(
        start,
        end,
        path,
        {each.label: each for each in known},
        rollouts,
        generations,
        graph,
        signs,
        engine_roles,
        recomputing_of(processes, engines),
        neighbours,
        [Unfinished(each.origin.role, each.generating()) for each in processes if each.label in open_ended]
        + _unrecorded_engines(processes, engines, short),
    )
    hosts = dict.fromkeys(process.host or _unknown_host(process) for process in processes)
    ranks = [each for each in processes if each.kind == "rank"]
    ended = not ranks or not all(each.open_ended() for each in ranks)
    island = Island(list(hosts), start, (end - start) / 1e9, processes[0].island, ended)
    division = divide(path, processes, [each.stretches for each in known], (start, end))
    return island, {
        "gantt": gantt(processes, start),
        "roles": [_on(each, island, several) for each in role_times(processes, start, end)],
        "regions": [_on(each, island, several) for each in region_times(processes, start, end)],
        "idle": idle_times(processes, Intervals.one(start, end), engine_roles, waits, engines),
        "rollout": rollouts,
        "engines": works,
        "memory": memory_peaks(processes, start),
        "parts": [_without_path(each, island) if several else each for each in division.parts],
        "path": [
            _segment(each, start, None if several else part, ", ".join(hosts) if several else None)
            for each, part in zip(path, division.of_path, strict=True)
        ],
        # what happens on other clocks may hold the step up meanwhile
        "slack": []
        if several
        else graph.spare(
            [each for each in known if each.process.is_followed and not each.process.open_ended()]
        ),
        "blameless": [
            *(last for each in known for _, _, last in each.apart),
            *(each.label for each in processes if each.origin.rank == DRIVER),
        ],
        "waits": changes_of(known, graph),
        "findings": [_without_gain(each) if several else each for each in findings_of(facts)],
    }


def _unknown_host(process: Process) -> str:
    """Return the name of a clock of an unknown host: that of its process, if stepprof did not record it."""
    return process.label if process.origin.kind == "trace" else "an unknown host"


def _recorded(process: Process, shortfalls: Sequence[Shortfall]) -> RecordedProcess:
    """Return what of a process was recorded."""
    origin = process.origin
    traces = [digest for digest in process.digests if digest.origin.kind != "spans"]
    is_engine = process.kind == "engine"
    if process.manifest_windows:
        captures = [
            "/".join(filter(None, (window["role"] or WHOLE_STEP, window.get("region"))))
            for window in process.manifest_windows
            if window["backend"] != NOT_A_CAPTURE
        ]
        whole: bool | None = process.is_whole
    else:
        captures = [origin.role or "trace"] * len(traces)
        whole = not _unfinished([process], {each.label for each in shortfalls}) if is_engine else None
    return RecordedProcess(
        process.label, process.kind, origin.rank, origin.role if is_engine else None, origin.replica,
        spans=len(traces) < len(process.digests) and not process.open_ended(), captures=sorted(captures), whole=whole,
        ended=not process.cut_short(), options=options_of(process.manifest_windows),
    )  # fmt: skip


LONGEST_ERROR = 160


def _raised(everyone: Sequence[Process]) -> list[Finding]:
    """Return the windows that ended by an exception: they lack the work that the program skipped."""
    raised = [
        (process.label, shorten(str(window["body_error"]), LONGEST_ERROR, placeholder=" …"))
        for process in everyone
        for window in process.manifest_windows
        if window.get("body_error")
    ]
    if not raised:
        return []
    more = len({label for label, _ in raised}) - 1
    text = f"an exception ended a window of {raised[0][0]}{f' and of {more} more' if more else ''}: {raised[0][1]}"
    return [Finding(text, "coverage", process=None if more else raised[0][0])]


def _unfinished(processes: Sequence[Process], short: set[str]) -> set[str]:
    """Return the engines' workers whose captures do not show when they finished."""
    return {
        process.label
        for process in processes
        if process.kind == "engine"
        and (
            process.label in short
            or any(not digest.whole or digest.unclear for digest in process.digests)
            or engine_of(process.origin) in short
        )
    }


def _unrecorded_engines(
    processes: Sequence[Process], engines: Sequence[Mapping[str, Any]], short: Collection[str]
) -> list[Unfinished]:
    """Return the engines of which the step has no trace."""
    there = {engine_of(each.origin) for each in processes if each.kind == "engine"}
    return [
        Unfinished(each["role"], EMPTY)
        for each in engines
        if each["kind"] not in SESSIONS and (label := engine_label(each)) in short and label not in there
    ]


def _without_gain(finding: Finding) -> Finding:
    return msgspec.structs.replace(finding, saves=None, assumption=None)


def _segment(segment: Segment, start: int, part: int | None, clock: str | None) -> PathSegment:
    return PathSegment(
        segment.process,
        (segment.start - start) / 1e9,
        (segment.end - segment.start) / 1e9,
        segment.kind,
        segment.role,
        list(segment.region),
        part,
        clock,
    )


def _signs(processes: Sequence[Process], evidence: Sequence[Evidence]) -> dict[str, Signs]:
    """Return the evidence by the label of its process; empty where there is none."""
    by_process = {(each.rank, each.host, each.pid): each for each in evidence}
    found = {process.label: Signs() for process in processes}
    for process in processes:
        origin = process.origin
        own = None if origin.rank is None else by_process.get((origin.rank, origin.host, origin.pid))
        if own is not None:
            threads = [digest.nest.thread for digest in process.digests if digest.nest is not None]
            main = next((each for each in threads if each is not None), None)
            found[process.label] = Signs.of(own, process.offset_ns, main)
    return found


def _by_clock(processes: Sequence[Process]) -> list[list[Process]]:
    """Return the processes of each clock, in order."""
    islands: dict[str, list[Process]] = {}
    for process in processes:
        islands.setdefault(process.island, []).append(process)
    return list(islands.values())


def _without_path(part: Part, island: Island) -> Part:
    """Return a part of one of several clocks: there is no path through the step."""
    return msgspec.structs.replace(part, seconds=None, share=None, clock=", ".join(island.hosts))


def _on(time: TimeOf, island: Island, several: bool) -> TimeOf:
    return msgspec.structs.replace(time, clock=", ".join(island.hosts)) if several else time


def _bounds(processes: Sequence[Process]) -> tuple[int, int]:
    """Return the bounds of the step: from the first window to the last, including the step's spans.

    Without windows, everything that was traced counts. A region of another thread or coroutine that lies
    outside the windows of its process does not make the step longer: it began in the step before, or the
    next steps go on meanwhile.
    """
    edges = [(window.start, window.end) for process in processes for window in process.windows]
    begun = [since for process in processes for _, since in process.open_ended()]
    everything = [(process, digest) for process in processes for digest in process.digests]
    spans = [each for each in everything if each[1].origin.kind == "spans"]
    for process, digest in spans if edges or begun or spans else everything:
        if digest.start is not None and digest.end is not None:
            first = min((window.start for window in process.windows), default=digest.start)
            last = max((window.end for window in process.windows), default=digest.end)
            last = digest.end if process.open_ended() else last
            edges.append((max(first, digest.start), min(last, digest.end)))
    if begun and not edges:  # windows without an end do not show how long the step took
        return min(begun), min(begun)
    edges += [(since, since) for since in begun]
    if not edges:
        edges = [(digest.start or 0, digest.end or 0) for _, digest in everything if digest.start is not None]
    return min((start for start, _ in edges), default=0), max((end for _, end in edges), default=0)


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
        island=alignment.island,
    )


def _without_trace(everyone: Sequence[Process], engines: Sequence[Mapping[str, Any]]) -> Iterable[SourceInfo]:
    """Yield the captures that should have produced a trace but did not."""
    of_ranks = [(each.label, "rank", window) for each in everyone for window in each.manifest_windows]
    of_engines = [(engine_label(engine), "engine", engine) for engine in engines]
    for label, kind, entry in (*of_ranks, *of_engines):
        if entry["artifacts"] or entry["status"] == "joined" or entry.get("backend") == "null":
            continue
        if entry.get("kind") in SESSIONS and entry["status"] == "complete":
            continue  # the driver's entry about a rank, which has an entry of its own for its trace
        yield SourceInfo(
            label, kind, None, entry["role"], entry.get("rank"), entry.get("replica"), entry["host"], entry["status"],
            events=0, bytes=None, alignment="", offset_ns=0, error_ns=None,
        )  # fmt: skip


def _left_out(digests: Sequence[Digest]) -> Iterable[Problem]:
    for digest in digests:
        if digest.calls.left_out:
            yield Problem(
                digest.origin.path,
                f"{digest.calls.left_out} collectives exceed the limit for matching across ranks: waits in them are not attributed",
            )
