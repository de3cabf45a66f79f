"""Merge many sources into one timeline: a worker reads each source and writes it as a part, and the
parts are concatenated.

Perfetto's packets can be concatenated. No source
waits for another one, and a worker has one source in memory at a time. So the largest source
determines the memory, whatever their number.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stepprof.analysis.timeline import descriptors
from stepprof.analysis.timeline.clocks import describe, worst_error
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.model import Source
from stepprof.analysis.timeline.ordering import source_order
from stepprof.analysis.timeline.parts import Job, Part, write_part, write_source
from stepprof.analysis.timeline.placement import Place, suffixes
from stepprof.analysis.timeline.workers import Failed, each_in_worker
from stepprof.errors import ConfigError
from stepprof.formatting import counted

if TYPE_CHECKING:
    from stepprof.analysis.timeline.ray_workers import Cluster

_COPY = 4 << 20
DEFAULT_NAME = "timeline.pftrace"
"""The file for the timeline of a step, in its folder."""
_MOST_LISTED = 3
"""The most entries listed about left-out files, if nothing else was found."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A written timeline."""

    path: Path
    bytes: int
    parts: list[Part]
    clock: str
    clock_error_ns: int | None

    @property
    def findings(self) -> list[tuple[str, str]]:
        """Problems of the sources: (label, problem)."""
        return [(part.label, problem) for part in self.parts for problem in part.findings]


def merge(
    inputs: Sequence[Input],
    output: Path,
    *,
    title: str = "timeline",
    filters: Filters | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    assume: Mapping[str, int] | None = None,
    roles: Mapping[str | None, int] | None = None,
    cluster: Cluster | None = None,
    left_out: Sequence[tuple[str | None, str]] = (),
    added: Sequence[Source] = (),
) -> Merged:
    """Write one timeline.

    Args:
        inputs: the sources, from `find`.
        output: the file; it is replaced as a whole, or not at all.
        title: name of the timeline.
        filters: the events to leave out.
        workers: the largest number of processes; None: one per core, and only this one for small sources.
        progress: called with (sources done, all sources) after each.
        assume: offsets for sources without an anchor [ns], as `load` takes them.
        roles: when each role began [ns], for the order of the sources.
        cluster: runs the work instead of processes of this machine.
        left_out: files that are no sources, with the reasons. An error lists them if there is no source.
        added: further sources, which are drawn above the others and are none of the files.

    Raises:
        ConfigError: there is nothing to merge, the filters exclude all events, or the output cannot be written.
    """
    if not inputs:
        raise ConfigError(nothing(left_out))
    job = Job(filters or Filters(), dict(assume or {}))
    ordered = places(inputs, roles or {}, above=len(added))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=output.parent) as scratch:
            parts = _write_parts(ordered, job, Path(scratch), workers, progress, cluster=cluster)
            refuse_nothing(parts, job.filters)
            _write_added(added, len(parts), job, Path(scratch))
            alignments = [part.alignment for part in parts]
            merged = Merged(output, 0, parts, describe(alignments), worst_error(alignments))
            whole = Path(scratch, "whole")
            with whole.open("wb") as file:
                _assemble(file, merged, title, Path(scratch), len(added))
            size = whole.stat().st_size
            whole.replace(output)
    except OSError as problem:
        raise ConfigError(
            f'output = "{output}": cannot be written: {problem.strerror or problem}; name another file with --output'
        ) from problem
    return replace(merged, bytes=size)


def nothing(left_out: Sequence[tuple[str | None, str]]) -> str:
    """Return the error if there is no source, with the files that are not sources."""
    listed = [problem if label is None else f"{label}: {problem}" for label, problem in left_out]
    more = [f"and {len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
    return "; ".join(["nothing to merge: no trace and no spans were found", *listed[:_MOST_LISTED], *more])


def refuse_nothing(parts: Sequence[Part], filters: Filters | None = None) -> None:
    """Raise ConfigError if the timeline has no event: it would replace one that has some."""
    if any(part.events for part in parts):
        return
    problems = [f"{part.path}: {problem}" for part in parts for problem in part.findings]
    if filters and not problems:
        raise ConfigError(
            f"nothing is left of {counted(len(parts), 'source')}: --from, --to, --min-us and --no-cpu-ops exclude all events"
        )
    raise ConfigError(
        f"nothing could be read of {counted(len(parts), 'source')}: {'; '.join(problems[:3]) or 'they are empty'}"
    )


def places(
    inputs: Iterable[Input],
    roles: Mapping[str | None, int],
    *,
    above: int = 0,
) -> list[tuple[Input, Place]]:
    """Sort sources and number them. Sources of one name get a suffix that distinguishes them.

    Args:
        inputs: the sources.
        roles: when each role began.
        above: how many further sources are drawn above them.
    """
    ordered = sorted(inputs, key=lambda each: source_order(each.origin, roles))
    apart = suffixes([each.origin for each in ordered])
    return [
        (each, Place(number, len(ordered) + above, apart[number], above=above))
        for number, each in enumerate(ordered)
    ]


def _write_parts(
    ordered: list[tuple[Input, Place]],
    job: Job,
    scratch: Path,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
    *,
    cluster: Cluster | None,
) -> list[Part]:
    """Write the part of each source; return their origins."""
    sizes = [wanted.bytes for wanted, _ in ordered]
    results: list[Part | Failed]
    if cluster is None:
        tasks = [(wanted, place, job, str(_part_file(scratch, place.index))) for wanted, place in ordered]
        results = each_in_worker(_write_file, tasks, sizes=sizes, workers=workers, progress=progress)
    else:
        results = cluster.each(
            _write_bytes,
            [(wanted, place, job) for wanted, place in ordered],
            sizes=sizes,
            workers=workers,
            progress=progress,
            taken=partial(_take, scratch),
        )
    for (_, place), result in zip(ordered, results, strict=True):
        if isinstance(result, Failed):
            _part_file(scratch, place.index).unlink(missing_ok=True)
    return [
        Part.failed(wanted, place, f"not in the timeline: {result.reason}")
        if isinstance(result, Failed)
        else result
        for (wanted, place), result in zip(ordered, results, strict=True)
    ]


def _write_file(wanted: Input, place: Place, job: Job, path: str) -> Part:
    with Path(path).open("wb") as file:
        return write_part(wanted, place, job, file)


def _write_bytes(wanted: Input, place: Place, job: Job) -> tuple[Part, bytes]:
    file = BytesIO()
    return write_part(wanted, place, job, file), file.getvalue()


def _take(scratch: Path, number: int, result: tuple[Part, bytes]) -> Part:
    part, data = result
    _part_file(scratch, number).write_bytes(data)
    return part


def _part_file(scratch: Path, index: int) -> Path:
    return scratch / f"part-{index}"


def _write_added(added: Sequence[Source], count: int, job: Job, scratch: Path) -> None:
    """Write sources that are no files after the others; they are drawn above these."""
    for number, source in enumerate(added):
        place = Place(count + number, count + len(added), above=-count)
        with _part_file(scratch, place.index).open("wb") as file:
            write_source(job.filters.apply(source), place, file)


def _assemble(file: BinaryIO, merged: Merged, title: str, scratch: Path, added: int) -> None:
    """Concatenate the parts after the head of the format."""
    start = min((part.first_ns for part in merged.parts if part.first_ns is not None), default=0)
    file.write(descriptors.head(title, merged.clock, start))
    _append(file, len(merged.parts) + added, scratch)


def _append(file: BinaryIO, count: int, scratch: Path) -> None:
    for index in range(count):
        path = _part_file(scratch, index)
        if path.is_file():
            with path.open("rb") as part:
                shutil.copyfileobj(part, file, _COPY)
            path.unlink()
