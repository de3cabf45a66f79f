"""Find the schedulers of an engine in a file, and collect the batch sizes and stages of their forward steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.engine_work import added, repeats, stage_totals, surplus
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.rollout import Batches, Curve, collect_batches, total_curve
from stepprof.analysis.timeline.iterations import batch_size
from stepprof.analysis.timeline.model import Source

ALIKE = 0.9
"""Two workers with a larger share of equal steps belong to one scheduler."""

Indices = npt.NDArray[np.intp]


def batches_of(source: Source, which: Indices) -> Batches | None:
    """Return the batch sizes of all schedulers in the file.

    Workers of one scheduler run the same steps. Those of different schedulers (data parallelism) do
    not.

    Args:
        source: of the file.
        which: its counters of batch sizes.
    """
    counters = source.counters
    if not len(which):
        return None
    curves = []
    for track in np.unique(counters.track[which]).tolist():
        mine = which[counters.track[which] == track]
        mine = mine[np.argsort(counters.time[mine], kind="stable")]
        if len(mine) > 1:
            curves.append(Curve(counters.time[mine], counters.value[mine][:-1]))
    schedulers = [curves[at] for at in _schedulers(curves)]
    if not schedulers:
        return None
    # a step without a request (vLLM has such steps) counts as none
    worked = sum(int(np.count_nonzero(curve.value > 0)) for curve in schedulers)
    curve = total_curve(schedulers) if len(schedulers) > 1 else schedulers[0]
    rows = _rows(source)
    stages = added(stage for row in rows for stage in stage_totals(source, row))
    if sum(each.iterations for each in stages) != worked:  # the steps are not those of the batch sizes
        return collect_batches(curve, worked)
    longer = Intervals.all_of(surplus(source, row) for row in rows)
    return collect_batches(curve, worked, stages, longer, [repeats(source, row) for row in rows])


def _schedulers(curves: Sequence[Curve]) -> list[int]:
    """Return the longest curve of each scheduler."""
    found: list[int] = []
    for at, curve in enumerate(curves):
        same = next((place for place, known in enumerate(found) if _go_together(curve, curves[known])), None)
        if same is None:
            found.append(at)
        elif len(curve.value) > len(curves[found[same]].value):
            found[same] = at
    return found


def _rows(source: Source) -> list[Indices]:
    """Return the forward steps of each scheduler, in order."""
    slices, rows = source.slices, []
    for number, track in enumerate(source.tracks):
        which = np.flatnonzero(slices.track == number) if track.kind == "iterations" else np.zeros(0, np.intp)
        if len(which):
            rows.append(which[np.argsort(slices.start[which], kind="stable")])
    return [rows[at] for at in _schedulers([_curve_of(source, which) for which in rows])]


def _curve_of(source: Source, which: Indices) -> Curve:
    """Return the batch sizes of forward steps in order."""
    slices = source.slices
    names, place = np.unique(slices.name[which], return_inverse=True)
    sizes = np.array([batch_size(source.names[name]) or 0 for name in names.tolist()], np.float64)
    start = slices.start[which]
    return Curve(np.append(start, start[-1] + slices.duration[which[-1]]), sizes[place])


def _go_together(one: Curve, other: Curve) -> bool:
    """Return whether two workers run the same steps: equal in number and batch size, at about the
    same times.
    """
    longer, shorter = (one, other) if len(one.value) >= len(other.value) else (other, one)
    if not len(shorter.value):
        return True
    # captures of two workers rarely begin and end at the same step
    nearest = np.searchsorted((longer.time[:-2] + longer.time[1:-1]) / 2, shorter.time[:-1])
    near = np.abs(longer.time[nearest] - shorter.time[:-1]) <= float(np.median(shorter.lengths)) / 2
    return bool((near & (longer.value[nearest] == shorter.value)).mean() >= ALIKE)
