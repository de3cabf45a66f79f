"""Yield the slices and the forward steps of a recorded step as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from stepprof.analysis.data.marked import marked_part, steps_of
from stepprof.analysis.data.table import BATCH_ROWS, Batch, Warn
from stepprof.analysis.timeline.cutting import cut
from stepprof.analysis.timeline.filters import Filters
from stepprof.analysis.timeline.find import Found, Input
from stepprof.analysis.timeline.iterations import batch_size
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.model import Slices, Source


def slice_rows(found: Found, wanted: frozenset[str], warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the slices of each source. One source is in memory at a time.

    Args:
        found: the step, its sources on the common clock.
        wanted: the columns to fill; without `arguments` the files are read faster.
        warn: receives the problems of each source.
    """
    for each in found.inputs:
        source = _read(each, arguments="arguments" in wanted)
        common = _common(source, found)
        steps = steps_of(source, each) if found.step is None else None
        _warn(source, warn)
        for at in range(0, len(source.slices), BATCH_ROWS):
            part = source.slices.between(at, at + BATCH_ROWS)
            of = {} if steps is None else {"step": steps[at : at + BATCH_ROWS]}
            yield len(part), {**common, **_columns(source, part), **of}


def iteration_rows(found: Found, warn: Warn) -> Iterator[tuple[int, Batch]]:
    """Yield the forward steps of each worker, as `slice_rows` yields slices."""
    for each in found.inputs:
        if each.origin.kind == "spans":
            continue
        source = _read(each, arguments=False)
        kinds = np.array([track.kind == "iterations" for track in source.tracks], np.bool_)
        steps = source.slices.where(kinds[source.slices.track])
        sizes = np.array([batch_size(name) or 0 for name in source.names], np.int64)
        columns = {**_common(source, found), **_columns(source, steps)}
        if found.step is None:
            columns["step"] = steps_of(source, each, steps.start)
        _warn(source, warn)
        yield len(steps), {**columns, "batch_size": sizes[steps.name]}


def _read(wanted: Input, *, arguments: bool) -> Source:
    """Read a source, cut to the step as `stepprof merge` cuts it."""
    source = load(wanted, args=arguments, flows=False)
    source = cut(marked_part(source, wanted), wanted.window).source
    if wanted.within is not None:
        start, end = (edge - source.alignment.offset_ns for edge in wanted.within)
        source = replace(Filters(from_ns=start, to_ns=end).apply(source), findings=source.findings)
    return source


def _warn(source: Source, warn: Warn) -> None:
    """Report the problems of a source, also those that were found when its steps were numbered."""
    for problem in source.findings:
        warn(source.origin.path, problem)


def _common(source: Source, found: Found) -> dict[str, Any]:
    """Return the columns that are the same for all slices of a source."""
    origin = source.origin
    number = origin.rank if isinstance(origin.rank, int) else None
    is_engine = origin.kind == "engine"
    return {
        "step": found.step,
        "occurrence": found.occurrence,
        "process": origin.label,
        "source_kind": origin.kind,
        "role": origin.role,
        "rank": None if is_engine else number,
        "replica": origin.replica,
        "worker": number if is_engine else None,
        "host": origin.host,
        "source": origin.path,
        "clock": source.alignment.island or None,
    }


def _columns(source: Source, slices: Slices) -> dict[str, Any]:
    return {
        "track": (slices.track, [track.name for track in source.tracks]),
        "track_kind": (slices.track, [track.kind for track in source.tracks]),
        "name": (slices.name, source.names),
        "category": (slices.category, source.categories),
        "start_unix_ns": slices.start,
        "duration_ns": slices.duration,
        "arguments": slices.args,
    }
