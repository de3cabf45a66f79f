"""From what was found to the report: each source is read and digested in a worker process of its own, and only the digests come back.

Workers are spawned, not forked, so that this runs wherever Python does. A worker that dies (the kernel took it for its memory) costs its source alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import msgspec

from stepprof.report.combine import combine
from stepprof.report.digest import Digest, digest
from stepprof.report.schema import Finding, Report
from stepprof.timeline.find import Found, Input
from stepprof.timeline.load import load

__all__ = ["Progress", "analyse", "bounds_of", "digest_input", "report_of"]

WORTH_A_WORKER = 4 * 2**20
"""Bytes of input below which starting a worker takes longer than the work."""

Progress = Callable[[int, int], None]
Bounds = tuple[int, int]


def analyse(
    found: Found,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    assume: Mapping[str, int] | None = None,
) -> Report:
    """Report on what was found.

    Args:
        found: by `stepprof.timeline.find.find`.
        workers: processes at most; by default as many as there are processors. 1: everything in this one.
        progress: called with (sources done, all sources) after each.
        assume: nanoseconds that are added to the times of sources, as `load` takes them.
    """
    jobs = [(each, bounds_of(each, found)) for each in found.inputs]
    return report_of(found, _digests(jobs, assume, workers, progress))


def report_of(found: Found, digests: Sequence[Digest]) -> Report:
    """The report from the digests of what was found, wherever those were made."""
    return combine(
        digests,
        step=found.step or 0,
        run_id=found.run_id or (found.folder.name if found.folder is not None else ""),
        manifests=found.manifests,
        findings=[Finding(source, problem) for source, problem in found.findings],
    )


def digest_input(
    wanted: Input, bounds: Bounds | None = None, assume: Mapping[str, int] | None = None
) -> Digest:
    """Read one source and digest it: what a worker does, on this host or on the one where the file lies.

    Args:
        wanted: from `find`.
        bounds: of the step, by `bounds_of`.
        assume: as `load` takes it.
    """
    source = load(wanted, args=wanted.origin.kind == "spans", assume=assume)
    made = digest(source, bounds)
    return msgspec.structs.replace(made, bytes=wanted.bytes, status=wanted.status)


def bounds_of(wanted: Input, found: Found) -> Bounds | None:
    """When its process was in windows of the step, by its own clock: one capture may go over several steps. None: all of it is of the step."""
    origin = wanted.origin
    if origin.kind != "rank":
        return None
    mine = [
        window
        for manifest in found.manifests
        for window in manifest["windows"]
        if (window["host"], window["pid"], window["rank"]) == (origin.host, origin.pid, origin.rank)
    ]
    edges = [(window["start_unix_ns"], window["end_unix_ns"]) for window in mine]
    if not edges or any(start is None or end is None for start, end in edges):
        return None
    return int(min(start for start, _ in edges)), int(max(end for _, end in edges))


def _digests(
    jobs: Sequence[tuple[Input, Bounds | None]],
    assume: Mapping[str, int] | None,
    workers: int | None,
    progress: Progress | None,
) -> list[Digest]:
    count = min(workers or os.cpu_count() or 1, len(jobs))
    done: dict[int, Digest] = {}

    def note(number: int, made: Digest) -> None:
        done[number] = made
        if progress is not None:
            progress(len(done), len(jobs))

    # the largest first, so that no worker begins it when the others are through
    order = sorted(range(len(jobs)), key=lambda number: -jobs[number][0].bytes)
    large = [number for number in order if jobs[number][0].bytes >= WORTH_A_WORKER]
    if count > 1 and len(large) > 1:
        _in_workers(jobs, large, assume, count, note)
        for number in large:
            if number not in done:
                _alone(jobs[number], assume, number, note)
    for number in order:
        if number not in done:
            note(number, digest_input(*jobs[number], assume))
    return [done[number] for number in range(len(jobs))]


def _in_workers(
    jobs: Sequence[tuple[Input, Bounds | None]],
    numbers: Sequence[int],
    assume: Mapping[str, int] | None,
    count: int,
    note: Callable[[int, Digest], None],
) -> None:
    """Those sources that no worker died of; with one, all that were not done yet are left."""
    with _pool(min(count, len(numbers))) as pool:
        futures: dict[Future[Digest], int] = {}
        try:
            for number in numbers:
                futures[pool.submit(digest_input, *jobs[number], assume)] = number
            for future in as_completed(futures):
                note(futures[future], future.result())
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(cancel_futures=True)


def _alone(
    job: tuple[Input, Bounds | None],
    assume: Mapping[str, int] | None,
    number: int,
    note: Callable[[int, Digest], None],
) -> None:
    """In a worker of its own, by which it is seen which source kills one."""
    wanted, bounds = job
    with _pool(1) as pool:
        try:
            note(number, pool.submit(digest_input, wanted, bounds, assume).result())
        except BrokenProcessPool:
            problem = (
                "the process that read it died, probably for want of memory: nothing of it is in the report"
            )
            note(
                number,
                Digest(
                    wanted.origin,
                    wanted.alignment,
                    0,
                    findings=[problem],
                    bytes=wanted.bytes,
                    status=wanted.status,
                ),
            )


def _pool(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
