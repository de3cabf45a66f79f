"""End the regions that outlast the window in which they began with that window: time after it is in no window, or in the next one.

So the regions of a window are inside it, and their times add up to it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepprof.analysis.report.intervals import Indices
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source


def within_windows(source: Source, chosen: Chosen) -> Source:
    """Return spans whose regions end with the innermost window of their thread and coroutine that was open when they began."""
    slices = source.slices
    if source.origin.kind != "spans" or not len(chosen.windows) or not len(chosen.regions):
        return source
    task = np.full(len(slices), -1, np.int64) if slices.task is None else slices.task
    duration = slices.duration.copy()
    place = slices.track.astype(np.int64) * (int(task.max(initial=0)) + 2) + task + 1
    for key in distinct(place[chosen.windows]).tolist():
        windows, regions = (
            chosen.windows[place[chosen.windows] == key],
            chosen.regions[place[chosen.regions] == key],
        )
        duration[regions] = np.minimum(duration[regions], _room(source, windows, regions))
    return replace(source, slices=replace(slices, duration=duration))


def _room(source: Source, windows: Indices, regions: Indices) -> np.ndarray:
    """Return for each region how long the innermost window around its begin goes on; without one, the region's own length."""
    slices = source.slices
    windows = windows[np.lexsort((-slices.duration[windows], slices.start[windows]))]
    opened = slices.start[windows]
    ends = opened + slices.duration[windows]
    start = slices.start[regions]
    around = np.searchsorted(opened, start, side="right") - 1
    while (over := (around >= 0) & (ends[around] <= start)).any():  # an inner window that had ended
        around[over] -= 1
    return np.where(around >= 0, ends[around] - start, slices.duration[regions])
