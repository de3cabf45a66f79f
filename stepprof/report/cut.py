"""The part of a source that is worked with: what lies in the step (one capture may go over several), and what a damaged file has not put somewhere else in history."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepprof.timeline.model import Counters, Instants, Slices, Source, Times

__all__ = ["sound", "within"]

FARTHEST_NS = 2**52
"""52 days: a capture has not lasted that long, and sums over it are exact."""

LARGEST_VALUE = 2.0**53
"""Of a counter: more is neither a batch nor bytes."""

Flags = npt.NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)


def sound(source: Source) -> Source:
    """The source without values beyond measure, and without what lies `FARTHEST_NS` from the middle of it; a finding says how much that was."""
    slices, instants, counters = source.slices, source.instants, source.counters
    times = [column for column in (slices.start, instants.time, counters.time) if len(column)]
    if not times:
        return source
    earliest, latest = min(int(column.min()) for column in times), max(int(column.max()) for column in times)
    longest = int(slices.duration.max(initial=0))
    usable = np.abs(counters.value) <= LARGEST_VALUE  # not of what is no number
    if latest - earliest + longest <= FARTHEST_NS and usable.all():
        return source
    middle = int(np.median(np.concatenate(times).astype(np.float64)))
    low, high = middle - FARTHEST_NS, middle + FARTHEST_NS

    def near(column: Times) -> Flags:
        return (column >= low) & (column <= high)

    # a difference: the sum of two times of a damaged file may not fit
    ends = slices.duration <= high - np.clip(slices.start, low, high)
    kept = _parts(source, near(slices.start) & ends, near(instants.time), near(counters.time) & usable)
    left = sum(
        len(before) - len(after)
        for before, after in (
            (slices, kept.slices),
            (instants, kept.instants),
            (counters, kept.counters),
        )
    )
    finding = f"{left} events lie months from the others, or have values beyond measure: they are left out of the report"
    return replace(kept, findings=[*source.findings, finding])


def within(source: Source, start: int, end: int) -> Source:
    """The part of a source between two times, slices cut to it."""
    slices = source.slices
    ends = slices.start + slices.duration

    def inside(column: Times) -> Flags:
        return (column >= start) & (column <= end)

    part = _parts(
        source,
        (ends >= start) & (slices.start <= end),
        inside(source.instants.time),
        inside(source.counters.time),
    )
    begin = np.maximum(part.slices.start, start)
    part.slices.duration = np.minimum(part.slices.start + part.slices.duration, end) - begin
    part.slices.start = begin
    return part


def _parts(source: Source, slices: Flags, instants: Flags, counters: Flags) -> Source:
    """The chosen slices, instants and counters."""
    old, moments, values = source.slices, source.instants, source.counters
    return replace(
        source,
        slices=Slices(
            _chosen(old.start, slices),
            _chosen(old.duration, slices),
            _chosen(old.name, slices),
            _chosen(old.category, slices),
            _chosen(old.track, slices),
            None if old.args is None else [old.args[at] for at in np.flatnonzero(slices).tolist()],
        ),
        instants=Instants(
            _chosen(moments.time, instants),
            _chosen(moments.name, instants),
            _chosen(moments.category, instants),
            _chosen(moments.track, instants),
        ),
        counters=Counters(
            _chosen(values.time, counters), _chosen(values.value, counters), _chosen(values.track, counters)
        ),
    )


def _chosen(column: npt.NDArray[Kind], flags: Flags) -> npt.NDArray[Kind]:
    """A column that stays whole is not copied."""
    return column if flags.all() else column[flags]
