"""Cut a source to the step, and remove what a damaged file places months away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.model import Source, Times

FARTHEST_NS = 2**52
"""52 days. No capture is longer, and sums within this limit are exact."""

LARGEST_VALUE = 2.0**53
"""The largest value of a counter; a larger one is neither a batch size nor a number of bytes."""

Flags = npt.NDArray[np.bool_]


def sound(source: Source) -> Source:
    """Return the source without impossible values and without events more than `FARTHEST_NS` from
    its middle.

    A finding states how many events are omitted.
    """
    slices, instants, counters = source.slices, source.instants, source.counters
    times = [column for column in (slices.start, instants.time, counters.time) if len(column)]
    if not times:
        return source
    earliest, latest = min(int(column.min()) for column in times), max(int(column.max()) for column in times)
    longest = int(slices.duration.max(initial=0))
    usable = np.abs(counters.value) <= LARGEST_VALUE  # NaN has no place in a median
    if latest - earliest + longest <= FARTHEST_NS and usable.all():
        return source
    middle = int(np.median(np.concatenate(times).astype(np.float64)))
    low, high = middle - FARTHEST_NS, middle + FARTHEST_NS

    def near(column: Times) -> Flags:
        return (column >= low) & (column <= high)

    # a difference: the sum of two times of a damaged file may not fit
    ends = slices.duration <= high - np.clip(slices.start, low, high)
    kept = source.parts(near(slices.start) & ends, near(instants.time), near(counters.time) & usable)
    left = sum(
        len(before) - len(after)
        for before, after in (
            (slices, kept.slices),
            (instants, kept.instants),
            (counters, kept.counters),
        )
    )
    finding = f"{left} events lie months from the others or have impossible values: they are omitted from the report"
    return replace(kept, findings=[*source.findings, finding])


def within(source: Source, start: int, end: int) -> Source:
    """Return the part of a source between two times, slices cut to it."""
    slices = source.slices
    ends = slices.start + slices.duration

    def inside(column: Times) -> Flags:
        return (column >= start) & (column <= end)

    part = source.parts(
        (ends >= start) & (slices.start <= end),
        inside(source.instants.time),
        inside(source.counters.time),
    )
    begin = np.maximum(part.slices.start, start)
    part.slices.duration = np.minimum(part.slices.start + part.slices.duration, end) - begin
    part.slices.start = begin
    return part
