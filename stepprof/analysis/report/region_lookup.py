"""Find the region around each communication call.

A call of a thread is in regions of the thread that started it, by time. A kernel runs later than
its launch, perhaps while the host is in another region. So for kernels, the annotations count that
torch writes on the stream itself (``gpu_user_annotation``): from the first kernel that was launched
in a region to the last. Without these, the region of a kernel is not known.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.slice_kinds import Chosen, Indices
from stepprof.analysis.timeline.model import Source

NONE = -1
"""Stands for a name: no region contains the call, or it is not known which."""
LATE_NS = 1_000_000
"""How much later than the region that waits for it a call of a thread may end.

The thread continues before the worker has closed the annotation: by 0.1 ms (torch 2.13, gloo), and
more where threads have to be scheduled.
"""


def regions_around(source: Source, chosen: Chosen) -> npt.NDArray[np.int64]:
    """Return for each chosen call the name of the innermost region around all of it, as an index
    into the source's names.
    """
    slices, calls = source.slices, chosen.calls
    found = np.full(len(calls), NONE, np.int64)
    track = slices.track[calls]
    on_stream = np.array([each.kind == "stream" for each in source.tracks], bool)
    on_host = ~on_stream[track]
    threads = np.unique(slices.track[chosen.dispatches])
    regions = chosen.regions
    if len(
        threads
    ):  # regions of the threads that start collectives, and of coroutines, which may be on any thread
        tasks = np.flatnonzero([each.kind == "async" for each in source.tracks])
        regions = regions[np.isin(slices.track[regions], np.concatenate((threads, tasks)))]
    found[on_host] = _innermost(source, regions, calls[on_host], LATE_NS)
    places = [each.key[1:] for each in source.tracks]
    for stream in np.unique(track[~on_host]).tolist():
        has_thread = np.array([place == places[stream] for place in places], bool)
        notes = chosen.annotations[has_thread[slices.track[chosen.annotations]]]
        which = np.flatnonzero(track == stream)
        found[which] = _innermost(source, notes, calls[which], 0)
    return found


def _innermost(source: Source, regions: Indices, calls: Indices, late_ns: int) -> npt.NDArray[np.int64]:
    """Return for some calls the name of the innermost of some regions around each."""
    if not len(regions):
        return np.full(len(calls), NONE, np.int64)
    slices = source.slices
    regions = regions[np.lexsort((-slices.duration[regions], slices.start[regions]))]
    begins, ends = slices.start[regions], slices.start[regions] + slices.duration[regions]
    around = _around(begins, ends)
    start = slices.start[calls]
    end = start + slices.duration[calls]
    found = np.searchsorted(begins, start, side="right") - 1
    while True:
        outside = (found >= 0) & ((ends[found] + late_ns < end) | (ends[found] <= start))
        if not outside.any():
            return np.where(found >= 0, slices.name[regions][found], NONE)
        found[outside] = around[found[outside]]


def _around(begins: Times, ends: Times) -> npt.NDArray[np.int64]:
    """Return for some regions, by their start, the region around each; -1: none."""
    around = np.full(len(begins), -1, np.int64)
    opened: list[tuple[int, int]] = []
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        while opened and opened[-1][1] < end and opened[-1][1] <= begin:
            opened.pop()
        around[at] = opened[-1][0] if opened else -1
        opened.append((at, end))
    return around
