"""Find the steps that torch's profiler marked in a trace (`profiler.step()`), and cut the trace to one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np

from stepprof.analysis.timeline.model import Source

_NAME = re.compile(r"ProfilerStep#(\d{1,18})")
_CALLED = ("cpu_op", "user_annotation")


class MarkedStep(msgspec.Struct, frozen=True, array_like=True):
    """A step between two calls of `profiler.step()`; nanoseconds on the common clock."""

    number: int
    start: int
    end: int
    """The start of the next one; of the last one, the end of the trace: kernels of it may run after its mark."""

    @property
    def length(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


def marked_steps(source: Source) -> list[MarkedStep]:
    """Return the steps that the thread of the profiler marked, in order. Of two with one number the last one counts, and a finding
    of the source says so. A last mark without work is none: the last `profiler.step()` of a loop begins it, and the end of the
    profile ends it.
    """
    numbers = {at: int(found[1]) for at, name in enumerate(source.names) if (found := _NAME.fullmatch(name))}
    slices, extent = source.slices, source.extent
    threads = np.array([track.kind == "thread" for track in source.tracks], bool)
    if not numbers or extent is None:
        return []
    marks = np.flatnonzero(np.isin(slices.name, [*numbers]) & threads[slices.track])
    if not len(marks):
        return []
    first = marks[np.argmin(slices.start[marks])]
    marks = marks[slices.track[marks] == slices.track[first]]
    marks = marks[np.argsort(slices.start[marks], kind="stable")]
    if not _has_work(source, marks[-1]):
        marks = marks[:-1]
    if not len(marks):
        return []
    starts = slices.start[marks].tolist()
    marked = [
        MarkedStep(numbers[name], start, end)
        for name, start, end in zip(
            slices.name[marks].tolist(), starts, [*starts[1:], extent[1]], strict=True
        )
    ]
    last = {step.number: step for step in marked}
    if len(last) < len(marked):
        source.findings.append(
            f"{len(marked) - len(last)} steps that torch's profiler marked have the number of a later one: the last one of each number counts"
        )
    return sorted(last.values(), key=lambda step: step.start)


def _has_work(source: Source, mark: int) -> bool:
    """Return whether an operator or an annotation begins after a mark; in a trace without operators, work of a device.

    Kernels of the steps before it may begin after it.
    """
    slices = source.slices
    later = slices.start >= slices.start[mark]
    later[mark] = False
    words = np.array([word in _CALLED for word in source.categories], bool)[slices.category]
    kinds = np.array([track.kind for track in source.tracks])[slices.track]
    operators = (kinds == "thread") & np.array([word == "cpu_op" for word in source.categories], bool)[
        slices.category
    ]
    if np.any(later & words & (kinds == "thread")):
        return True
    return not np.any(operators) and bool(np.any(later & (kinds == "stream")))


def median_step(steps: Sequence[MarkedStep]) -> int:
    """Return the number of the step of median length, of an even number the shorter one."""
    return sorted(steps, key=lambda step: (step.length, step.number))[(len(steps) - 1) // 2].number


def cut_to_step(source: Source, step: MarkedStep) -> Source:
    """Return what the source recorded in a step; slices that last longer are cut to it."""
    slices = source.slices
    ends = slices.start + slices.duration
    points = [
        (step.start <= times) & (times < step.end) for times in (source.instants.time, source.counters.time)
    ]
    part = source.parts(
        ((ends > step.start) | (slices.start >= step.start)) & (slices.start < step.end), points[0], points[1]
    )
    ends = np.minimum(part.slices.start + part.slices.duration, step.end)
    part.slices.start = np.maximum(part.slices.start, step.start)
    part.slices.duration = ends - part.slices.start
    return part
