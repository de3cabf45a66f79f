"""Cut an engine's capture to its window: an engine that stops late has recorded further steps.

A forward step belongs to the window in which it begins. It lasts until the next one begins, or,
before a pause, until shortly after its own end. The work of its processes during that time belongs
to it, and so does the work that it started on a device.

If the clocks of the engine and its driver are not known well enough to decide which forward steps
began in the window, nothing is cut, and a finding states that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepprof.analysis.timeline.capture_window import FAR_NS, CaptureWindow
from stepprof.analysis.timeline.iterations import BATCH_SIZE, batch_size, lasting
from stepprof.analysis.timeline.model import Flags, Slices, Source, Times
from stepprof.analysis.timeline.tracks import DEVICE_ANNOTATIONS


@dataclass(frozen=True, slots=True)
class Cut:
    """An engine's capture and its window."""

    source: Source
    """The part in the window, or everything if the window cannot be located."""
    recorded: int = 0
    """Forward steps in the whole capture."""
    least: int = 0
    """The number of these in the window, as far as the clocks are known: at least, and at most."""
    most: int = 0
    is_known: bool = True
    """Whether the part in the window is known."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """The forward steps of one scheduler, in order."""

    pid: str
    begin: Times
    end: Times
    until: Times
    """The start of the next step, or, before a pause, shortly after its own end."""
    works: Flags
    """Whether it had requests. vLLM also has steps without requests."""

    def count(self, start: int, end: int) -> int:
        """Return how many steps begin between two times."""
        first, last = np.searchsorted(self.begin[self.works], (start, end))
        return int(last - first)

    def changes(self, window: CaptureWindow, low: int, high: int) -> bool:
        """Return whether the steps that begin in the window depend on the choice between two
        shifts.
        """
        shifted = ((window.start - shift, window.end - shift) for shift in (low, high))
        one, other = (np.searchsorted(self.begin, edges) for edges in shifted)
        return not np.array_equal(one, other)

    def edges(self, start: int, end: int) -> tuple[int, int]:
        """Return the interval of the steps that begin between two times, and its parts before and
        after these times.
        """
        first, last = (int(at) for at in np.searchsorted(self.begin, (start, end)))
        low = max(start, int(self.until[first - 1])) if first else start
        high = max(end, int(self.until[last - 1])) if last > first else end
        return low, max(low, high)


def cut(source: Source, window: CaptureWindow | None) -> Cut:
    """Cut a source to its window.

    Args:
        source: a capture, of an engine or another process.
        window: on the common clock; None: keep everything.
    """
    schedulers = _schedulers(source)
    recorded = sum(int(steps.works.sum()) for steps in schedulers)
    if window is None:
        return Cut(source, recorded, recorded, recorded)
    extent = source.extent
    if extent is None:
        return Cut(source)
    shifts = window.shifts(*extent)
    if shifts is None:
        return Cut(_with_finding(source, _WRONG), recorded, 0, recorded, is_known=False)
    least, most = _bounds(schedulers, window, *shifts)
    if shifts[0] < shifts[1]:
        if most == recorded:  # no step is known to be outside
            return Cut(source, recorded, recorded, recorded)
        if any(steps.changes(window, *shifts) for steps in schedulers):
            return Cut(
                _with_finding(source, _unknown(window, least, most, recorded)),
                recorded,
                least,
                most,
                is_known=False,
            )
    shift = min(max(0, shifts[0]), shifts[1])
    part = _part(source, schedulers, window.start - shift, window.end - shift)
    if least < recorded:
        finding = (
            f"{recorded - least} of its {recorded} forward steps started outside the window and are omitted"
        )
        part = _with_finding(part, finding)
    return Cut(part, recorded, least, least)


def _bounds(schedulers: Sequence[_Steps], window: CaptureWindow, low: int, high: int) -> tuple[int, int]:
    """Return the least and the largest number of forward steps that may have begun in the window."""
    if not schedulers:
        return 0, 0
    begin = np.concatenate([steps.begin[steps.works] for steps in schedulers])
    begin.sort()
    if low == high or not len(begin):
        counts = [sum(steps.count(window.start - low, window.end - low) for steps in schedulers)]
        return counts[0], counts[0]
    changes = np.concatenate((window.start - begin, window.end - begin))
    changes = changes[(changes > low) & (changes < high)]
    shifts = np.concatenate(([low, high], changes, changes + 1))
    count = np.searchsorted(begin, window.end - shifts) - np.searchsorted(begin, window.start - shifts)
    return int(count.min()), int(count.max())


_WRONG = (
    "no event lies between the start and the stop of its capture, so its times or its clock are wrong: "
    "all events are shown, and the report ignores its forward steps"
)


def _unknown(window: CaptureWindow, least: int, most: int, recorded: int) -> str:
    known = (
        "was never compared" if window.unsure is None else f"is known within {window.unsure / 1e9:.3g} s only"
    )
    count = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"its clock {known}: {count} of its {recorded} forward steps began in the window, but which ones is unknown. The report ignores its forward steps; "
        "its operators and kernels are those of the whole capture"
    )


def _with_finding(source: Source, finding: str) -> Source:
    return source if finding in source.findings else replace(source, findings=[*source.findings, finding])


def _schedulers(source: Source) -> list[_Steps]:
    slices = source.slices
    works = np.array([bool(batch_size(name)) for name in source.names], np.bool_)
    found = []
    for number, track in enumerate(source.tracks):
        which = np.flatnonzero(slices.track == number) if track.kind == "iterations" else ()
        if len(which):
            which = which[np.argsort(slices.start[which], kind="stable")]
            begin, name = slices.start[which], slices.name[which]
            end = begin + slices.duration[which]
            found.append(_Steps(track.key[1], begin, end, lasting(begin, end), works[name]))
    return found


def _part(source: Source, schedulers: Sequence[_Steps], start: int, end: int) -> Source:
    """Return the part between two times of the source's own clock, with whole forward steps."""
    low, high = start, end
    if schedulers:
        edges = [steps.edges(start, end) for steps in schedulers]
        low, high = min(edge[0] for edge in edges), max(edge[1] for edge in edges)
    slices, counters = source.slices, source.counters
    ends = slices.start + slices.duration
    step, device = _of_tracks(source, "iterations"), _on_device(source)
    first, last = _device_edges(source, schedulers, start, end)
    kept = (ends >= low) & (slices.start < high)
    kept = np.where(step, (slices.start >= start) & (slices.start < end), kept)
    kept = np.where(device, (slices.start >= first) & (slices.start < last), kept)
    values = _between(counters.time, low, high) & ~_of_batches(source)
    part = source.parts(kept, _between(source.instants.time, low, high), values)
    _clip(part.slices, ~(step | device)[kept], low, high)
    for steps in schedulers:
        pid = steps.pid if len(schedulers) > 1 else None
        _add_batches(part, steps, source, pid, (start, end))
    return part


def _clip(slices: Slices, which: Flags, low: int, high: int) -> None:
    begin = np.where(which, np.maximum(slices.start, low), slices.start)
    end = slices.start + slices.duration
    slices.duration = np.where(which, np.minimum(end, high), end) - begin
    slices.start = begin


def _of_batches(source: Source) -> Flags:
    """Return which values are batch sizes."""
    batches = [track.kind == "counter" and track.name.endswith(BATCH_SIZE) for track in source.tracks]
    of_track = np.array(batches, np.bool_)
    return of_track[source.counters.track] if len(source.counters) else np.zeros(0, np.bool_)


def _add_batches(
    part: Source, steps: _Steps, source: Source, pid: str | None, window: tuple[int, int]
) -> None:
    """Add the batch sizes of one scheduler's forward steps that begin in a window. No batch size
    continues after the last step.

    `pid`: of the scheduler; None: there is only one.
    """
    first, last = (int(at) for at in np.searchsorted(steps.begin, window))
    values = source.counters
    pids = np.array([pid is None or track.key[1:2] == (pid,) for track in source.tracks], np.bool_)
    mine = np.flatnonzero(_of_batches(source) & (pids[values.track] if len(values) else True))
    if first == last or not len(mine):
        return
    mine = mine[_between(values.time[mine], int(steps.begin[first]), int(steps.begin[last - 1]))]
    over = int(steps.end[first:last].max())
    counters = part.counters
    counters.time = np.concatenate((counters.time, values.time[mine], [over]))
    counters.value = np.concatenate((counters.value, values.value[mine], [0.0]))
    counters.track = np.concatenate((counters.track, values.track[mine], values.track[mine[-1:]]))


def _of_tracks(source: Source, kind: str) -> Flags:
    flags = np.array([track.kind == kind for track in source.tracks], np.bool_)
    return flags[source.slices.track] if len(source.slices) else np.zeros(0, np.bool_)


def _on_device(source: Source) -> Flags:
    """Return which slices show work of a device."""
    notes = np.array([name in DEVICE_ANNOTATIONS for name in source.categories], np.bool_)
    device = _of_tracks(source, "stream")
    return device | notes[source.slices.category] if len(device) else device


def _device_edges(source: Source, schedulers: Sequence[_Steps], start: int, end: int) -> tuple[int, int]:
    """Return the interval in which a device worked for the forward steps of the window. It starts
    and ends later than the host's launches.

    A trace of a device contains copies of the steps' annotations, in the same order. Without them,
    the interval is from the start of the first step to the start of the first step after the
    window.
    """
    if len(schedulers) != 1:
        return start, end
    begin = schedulers[0].begin
    first, last = (int(at) for at in np.searchsorted(begin, (start, end)))
    copies = _copies(source)
    if len(copies) == len(begin):
        begin = copies
    return (
        int(begin[first]) if 0 < first < len(begin) else start,
        int(begin[last]) if last < len(begin) else FAR_NS,
    )


def _copies(source: Source) -> Times:
    """Return when the copies of the forward steps begin on a device, on the stream with the most
    copies.
    """
    notes = np.array([name in DEVICE_ANNOTATIONS for name in source.categories], np.bool_)
    names = np.array([batch_size(name) is not None for name in source.names], np.bool_)
    slices = source.slices
    if not len(slices) or not notes.any() or not names.any():
        return np.zeros(0, np.int64)
    which = np.flatnonzero(notes[slices.category] & names[slices.name])
    most = np.bincount(slices.track[which]).argmax() if len(which) else 0
    return np.sort(slices.start[which[slices.track[which] == most]])


def _between(time: Times, low: int, high: int) -> Flags:
    return (time >= low) & (time <= high)
