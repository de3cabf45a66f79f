"""End the slices that were open when torch's profiler stopped. torch ends them when it has processed its events, seconds later."""

from __future__ import annotations

import numpy as np

from stepprof.analysis.timeline.model import PROFILER_END, Source

_SPAN = "PyTorch Profiler ("
"""How torch's slice of its own capture begins, from the start of the profiler to its stop."""
_ROUNDING_NS = 2


def end_open_slices(source: Source) -> None:
    """Let slices of threads that last until torch's mark of the end of its processing end with torch's span of the capture.

    A trace without the span or the mark stays as it is.
    """
    slices, instants, counters = source.slices, source.instants, source.counters
    spans = [number for number, name in enumerate(source.names) if name.startswith(_SPAN)]
    if not spans or PROFILER_END not in source.names:
        return
    span, mark = np.isin(slices.name, spans), instants.name == source.names.index(PROFILER_END)
    if not span.any() or not mark.any():
        return
    end = int((slices.start + slices.duration)[span].max())
    processed = int(instants.time[mark].max()) - _ROUNDING_NS
    if end >= processed:
        return
    on_device = np.array([track.kind == "stream" for track in source.tracks], bool)[slices.track]
    left_open = (slices.start + slices.duration >= processed) & ~on_device
    slices.duration[left_open] = np.maximum(end - slices.start[left_open], 0)
    counters.time[counters.time >= processed] = end
