"""Analyse the rollout's long tail: the number of sequences in generation over time, and the last
samples.

A batch size holds until it changes; it is 0 while the engine pauses. Without iterations, samples
bound with ``stepprof.bind(sample=…)`` are used: a sample is in flight from its first region to its
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.engine_work import StageTotal
from stepprof.analysis.report.intervals import EMPTY, Intervals, Times, nesting_order, self_times
from stepprof.analysis.report.schema import Rollout, Sample, SampleSeconds

__all__ = [
    "MOST_SAMPLES",
    "Batches",
    "Curve",
    "SampleTime",
    "Samples",
    "collect_batches",
    "collect_samples",
    "rollout",
    "sample_seconds",
    "total_curve",
]

MOST_POINTS = 20_000
"""The number of steps of a curve in a digest. A longer curve is averaged over intervals of equal
length.
"""
CURVE_POINTS = 300
MOST_SAMPLES = 50

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A value over time that changes in steps: ``value[i]`` from ``time[i]`` to ``time[i + 1]``; one more time than values."""

    time: Times
    value: Values

    @property
    def lengths(self) -> Values:
        """Nanoseconds of each step."""
        return np.diff(self.time).astype(np.float64)

    def reduced(self, most: int) -> Curve:
        """Return a curve of at most `most` steps; longer ones are averaged over intervals of equal
        length.
        """
        if len(self.value) <= most:
            return self
        edges = np.linspace(self.time[0], self.time[-1], most + 1).astype(np.int64)
        area = np.concatenate(([0.0], np.cumsum(self.value * self.lengths)))
        means = np.diff(np.interp(edges, self.time, area)) / np.maximum(np.diff(edges), 1)
        return Curve(edges, means)


class Batches(msgspec.Struct, frozen=True):
    """The iterations of one engine's worker as a curve, packed."""

    iterations: int
    time: bytes
    value: bytes
    peak: float
    """The peak of single iterations; a mean over many is lower."""
    stages: list[StageTotal] = []
    """The same iterations by stage."""
    surplus: bytes = b""
    """Packed intervals: by how much iterations with more than one token per continued sequence took longer than others."""

    def curve(self) -> Curve:
        """Unpacked."""
        return Curve(
            np.frombuffer(self.time, "<i8").astype(np.int64),
            np.frombuffer(self.value, "<f8").astype(np.float64),
        )


class SampleTime(msgspec.Struct, frozen=True):
    """One sample; nanoseconds, `spent` by the name of the region."""

    sample: str
    start: int
    end: int
    spent: dict[str, int]


class Samples(msgspec.Struct, frozen=True):
    """All samples of one source: how many were in flight over time (packed), and the longest ones,
    longest first.
    """

    count: int
    time: bytes
    value: bytes
    longest: list[SampleTime]
    lengths: bytes = b""
    """Nanoseconds of each sample, sorted and packed; of more than `MOST_POINTS` samples as many quantiles."""

    def curve(self) -> Curve:
        """Unpacked."""
        return Curve(
            np.frombuffer(self.time, "<i8").astype(np.int64),
            np.frombuffer(self.value, "<f8").astype(np.float64),
        )


def collect_batches(
    curve: Curve, iterations: int, stages: Sequence[StageTotal] = (), surplus: Intervals = EMPTY
) -> Batches:
    """Pack the batch sizes of an engine.

    Args:
        curve: the batch size over time; 0 where nothing ran.
        iterations: number of forward steps in it.
        stages: the same forward steps by stage.
        surplus: as in `Batches`.
    """
    packed = curve.reduced(MOST_POINTS)
    return Batches(
        iterations,
        packed.time.astype("<i8").tobytes(),
        packed.value.tobytes(),
        float(curve.value.max()),
        list(stages),
        surplus.pack(),
    )


def collect_samples(
    samples: Sequence[str],
    names: Sequence[str],
    *,
    sample: npt.NDArray[np.int32],
    name: npt.NDArray[np.int32],
    start: Times,
    duration: Times,
) -> Samples:
    """Return the samples of one source from the slices on their tracks. There must be at least one.

    Args:
        samples: name of each sample.
        names: of the slices.
        sample: of each slice, into `samples`.
        name: of each slice, into `names`.
        start: of each slice, nanoseconds.
        duration: of each slice.
    """
    end = start + duration
    order = nesting_order(sample, start, end)
    own = self_times(sample, start, duration)
    bounds = np.concatenate((np.flatnonzero(np.diff(sample[order], prepend=-1)), [len(order)]))
    first = start[order][bounds[:-1]]
    last = np.maximum.reduceat(end[order], bounds[:-1])
    longest = []
    for at in np.argsort(first - last, kind="stable")[:MOST_SAMPLES].tolist():
        mine = order[bounds[at] : bounds[at + 1]]
        spent: dict[str, int] = {}
        for which, nanoseconds in zip(name[mine].tolist(), own[mine].tolist(), strict=True):
            spent[names[which]] = spent.get(names[which], 0) + nanoseconds
        longest.append(SampleTime(samples[sample[mine[0]]], int(first[at]), int(last[at]), spent))
    curve = _in_flight(first, last).reduced(MOST_POINTS)
    lengths = np.sort(last - first)
    if len(lengths) > MOST_POINTS:
        lengths = lengths[np.linspace(0, len(lengths) - 1, MOST_POINTS).astype(np.int64)]
    return Samples(
        len(first),
        curve.time.astype("<i8").tobytes(),
        curve.value.tobytes(),
        longest,
        lengths.astype("<i8").tobytes(),
    )


def sample_seconds(parts: Sequence[Samples]) -> SampleSeconds | None:
    """Return the distribution of the durations of samples of several sources; None: not known."""
    lengths = [np.frombuffer(part.lengths, "<i8") for part in parts]
    if not parts or not all(map(len, lengths)):
        return None
    weights = np.concatenate(
        [np.full(len(each), part.count / len(each)) for part, each in zip(parts, lengths, strict=True)]
    )
    every = np.concatenate(lengths)
    order = np.argsort(every, kind="stable")
    below, every = np.cumsum(weights[order]), every[order] / 1e9

    def at(part: float) -> float:
        return float(every[min(int(np.searchsorted(below, part * below[-1])), len(every) - 1)])

    mean = float((every * weights[order]).sum() / below[-1])
    return SampleSeconds(sum(part.count for part in parts), mean, at(0.5), at(0.95), float(every[-1]))


def _in_flight(first: Times, last: Times) -> Curve:
    """Return how many of some intervals contain each time."""
    times = np.concatenate((first, last))
    steps = np.repeat(np.array([1.0, -1.0]), [len(first), len(last)])
    order = np.argsort(times, kind="stable")
    at, where = np.unique(times[order], return_index=True)
    value = np.add.reduceat(steps[order], where).cumsum()
    return Curve(at, value[:-1])


def total_curve(curves: Sequence[Curve]) -> Curve:
    """Return the sum of several curves; each is zero outside of its own time."""
    times = np.concatenate([curve.time for curve in curves])
    steps = np.concatenate([np.diff(curve.value, prepend=0.0, append=0.0) for curve in curves])
    order = np.argsort(times, kind="stable")
    at, where = np.unique(times[order], return_index=True)
    value = np.add.reduceat(steps[order], where).cumsum()
    return Curve(at, np.maximum(value[:-1], 0.0))


def rollout(
    label: str,
    curve: Curve,
    origin_ns: int,
    *,
    iterations: int = 0,
    peak: float | None = None,
    samples: Sequence[SampleTime] = (),
    times: SampleSeconds | None = None,
    whole: bool = True,
) -> Rollout | None:
    """Return the figures of the curve of a generation phase; None if it has no length.

    Args:
        label: name of the engine or process.
        curve: batch sizes, or samples in flight.
        origin_ns: second 0 of the report.
        iterations: number of iterations in the curve.
        peak: the largest batch, if the steps of the curve are means.
        samples: the longest ones.
        times: the durations of all of them.
        whole: whether the curve covers all of the phase.
    """
    lengths = curve.lengths
    total = float(lengths.sum())
    if not total:
        return None
    highest = float(curve.value.max()) if peak is None else peak
    full = curve.value >= highest / 2
    filled = np.flatnonzero(full & (lengths > 0))
    tail = float(lengths[filled[-1] + 1 :].sum()) if len(filled) else total
    shown = curve.reduced(CURVE_POINTS)
    points = [
        (round((at - origin_ns) / 1e9, 6), round(value, 3))
        for at, value in zip(shown.time.tolist(), [*shown.value.tolist(), 0.0], strict=True)
    ]
    return Rollout(
        label=label,
        iterations=iterations,
        seconds=total / 1e9,
        peak_batch=highest,
        mean_batch=float((curve.value * lengths).sum()) / total,
        below_half=float(lengths[~full].sum()) / total,
        tail=tail / 1e9,
        curve=points,
        samples=[_sample(sample, origin_ns) for sample in samples],
        sample_seconds=times,
        whole=whole,
    )


def _sample(sample: SampleTime, origin_ns: int) -> Sample:
    return Sample(
        sample.sample,
        (sample.start - origin_ns) / 1e9,
        (sample.end - origin_ns) / 1e9,
        {name: nanoseconds / 1e9 for name, nanoseconds in sample.spent.items()},
    )
