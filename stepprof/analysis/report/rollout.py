"""Analyse the rollout's long tail: the number of sequences in generation over time, and the last
samples.

A batch size holds until it changes; it is 0 while the engine pauses. Without iterations, samples
bound with ``stepprof.bind(sample=…)`` are used: a sample is in flight from its first region to its
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Moment, Moments, Times, nesting_order, self_times
from stepprof.analysis.report.requests import Request, RequestTimes, times_of
from stepprof.analysis.report.schema import Rollout, Sample, SampleSeconds
from stepprof.analysis.timeline.distinct import distinct

MOST_POINTS = 20_000
"""The number of steps of a curve in a digest. A longer curve is averaged over intervals of equal
length.
"""
CURVE_POINTS = 300
MOST_SAMPLES = 50

MOST_VALUES = 20_000
"""The number of values in a digest. Of more things it has as many quantiles."""

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

    def within(self, start: int, end: int) -> Curve | None:
        """Return the part between two times, from its first value above zero to its last one; None: there is none."""
        inside = (self.time[1:] > start) & (self.time[:-1] < end) & (self.value > 0)
        where = np.flatnonzero(inside)
        if not len(where):
            return None
        low, high = where[0], where[-1] + 1
        return Curve(np.clip(self.time[low : high + 1], start, end), self.value[low:high])

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

    def pack(self) -> tuple[bytes, bytes]:
        """Return the times and the values as bytes, to be stored in JSON."""
        return self.time.astype("<i8").tobytes(), self.value.tobytes()


class PackedCurve(msgspec.Struct, frozen=True):
    """A curve, packed."""

    time: Moments
    value: bytes

    def curve(self) -> Curve:
        """Unpacked."""
        return Curve(
            np.frombuffer(self.time, "<i8").astype(np.int64),
            np.frombuffer(self.value, "<f8").astype(np.float64),
        )


class Distribution(msgspec.Struct, frozen=True):
    """Nanoseconds of several things, packed by `packed`."""

    count: int = 0
    """The number of things."""
    values: bytes = b""


class SampleTime(msgspec.Struct, frozen=True):
    """One sample; nanoseconds, `spent` by the name of the region."""

    sample: str
    start: Moment
    end: Moment
    spent: dict[str, int]
    requests: RequestTimes = RequestTimes()
    """The times of its requests."""


class Samples(PackedCurve, frozen=True):
    """All samples of one source: how many were in flight over time (packed), and the longest ones,
    longest first.
    """

    role: str | None
    """The role in which they spent most time."""
    longest: list[SampleTime]
    times: Distribution
    """Nanoseconds of each sample."""
    first_tokens: Distribution
    """Nanoseconds from each request to its first token."""
    per_token: Distribution
    """Nanoseconds between two tokens of each request."""
    generated: Distribution
    """Generated tokens of each request."""


def collect_samples(
    samples: Sequence[str],
    names: Sequence[str],
    *,
    sample: npt.NDArray[np.int32],
    name: npt.NDArray[np.int32],
    start: Times,
    duration: Times,
    role: str | None = None,
    requests: Mapping[int, Sequence[Request]] | None = None,
) -> Samples:
    """Return the samples of one source from the slices on their tracks. There must be at least one.

    Args:
        samples: name of each sample.
        names: of the slices.
        sample: of each slice, into `samples`.
        name: of each slice, into `names`.
        start: of each slice, nanoseconds.
        duration: of each slice.
        role: of all of them.
        requests: of each sample, by its place in `samples`; None: nothing is known of them.
    """
    requests = requests or {}
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
        for called, nanoseconds in zip(name[mine].tolist(), own[mine].tolist(), strict=True):
            spent[names[called]] = spent.get(names[called], 0) + nanoseconds
        which = int(sample[mine[0]])
        longest.append(
            SampleTime(
                samples[which], int(first[at]), int(last[at]), spent, times_of(requests.get(which, ()))
            )
        )
    made = [each for at in distinct(sample).tolist() for each in requests.get(at, ())]
    steps = np.repeat(np.array([1.0, -1.0]), [len(first), len(last)])
    return Samples(
        *_summed(np.concatenate((first, last)), steps).reduced(MOST_POINTS).pack(),
        role,
        longest,
        Distribution(len(first), packed(last - first)),
        distribution_of([each.first_token for each in made]),
        distribution_of([each.per_token for each in made]),
        distribution_of([each.generated for each in made]),
    )


def _summed(times: Times, steps: Values) -> Curve:
    """Return the curve that rises by these steps at these times."""
    order = np.argsort(times, kind="stable")
    at, where = np.unique(times[order], return_index=True)
    value = np.add.reduceat(steps[order], where).cumsum()
    return Curve(at, np.maximum(value[:-1], 0.0))


def total_curve(curves: Sequence[Curve]) -> Curve:
    """Return the sum of several curves; each is zero outside of its own time."""
    steps = [np.diff(curve.value, prepend=0.0, append=0.0) for curve in curves]
    return _summed(np.concatenate([curve.time for curve in curves]), np.concatenate(steps))


def rollout(
    label: str,
    curve: Curve,
    origin_ns: int,
    *,
    iterations: int = 0,
    peak: float | None = None,
    bound: Sequence[Samples] = (),
    whole: bool = True,
) -> Rollout | None:
    """Return the figures of the curve of a generation phase; None if it has no length.

    Args:
        label: name of the engine or process.
        curve: batch sizes, or samples in flight.
        origin_ns: second 0 of the report.
        iterations: number of iterations in the curve.
        peak: the largest batch, if the steps of the curve are means.
        bound: the samples that the curve is made from, of each source.
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
    longest = sorted(
        (sample for each in bound for sample in each.longest), key=lambda sample: sample.start - sample.end
    )
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
        samples=[_sample(sample, origin_ns) for sample in longest[:MOST_SAMPLES]],
        sample_seconds=seconds_of([each.times for each in bound]),
        first_token=seconds_of([each.first_tokens for each in bound]),
        per_token=seconds_of([each.per_token for each in bound]),
        generated_tokens=seconds_of([each.generated for each in bound], unit=1.0),
        whole=whole,
    )


def _sample(sample: SampleTime, origin_ns: int) -> Sample:
    requests = sample.requests
    return Sample(
        sample.sample,
        (sample.start - origin_ns) / 1e9,
        (sample.end - origin_ns) / 1e9,
        {name: nanoseconds / 1e9 for name, nanoseconds in sample.spent.items()},
        requests.count,
        requests.generated,
        None if requests.first_token is None else requests.first_token / 1e9,
        None if requests.per_token is None else requests.per_token / 1e9,
    )


def packed(nanoseconds: npt.NDArray[np.int64]) -> bytes:
    """Return durations sorted and packed; of more than `MOST_VALUES` as many quantiles."""
    values = np.sort(nanoseconds)
    if len(values) > MOST_VALUES:
        values = values[np.linspace(0, len(values) - 1, MOST_VALUES).astype(np.int64)]
    return values.astype("<i8").tobytes()


def distribution_of(nanoseconds: Sequence[float | None]) -> Distribution:
    """Return the distribution of the durations that are known."""
    known = np.array([round(each) for each in nanoseconds if each is not None], np.int64)
    return Distribution(len(known), packed(known))


def seconds_of(parts: Sequence[Distribution], unit: float = 1e9) -> SampleSeconds | None:
    """Return the distribution of several parts together; None: a part has things whose durations are not known, or
    there are none.

    Args:
        parts: what the digests hold.
        unit: what the packed values are divided by: 1 if they are no nanoseconds.
    """
    parts = [part for part in parts if part.count]
    lengths = [np.frombuffer(part.values, "<i8") for part in parts]
    if not parts or not all(map(len, lengths)):
        return None
    weights = np.concatenate(
        [np.full(len(each), part.count / len(each)) for part, each in zip(parts, lengths, strict=True)]
    )
    every = np.concatenate(lengths)
    order = np.argsort(every, kind="stable")
    below, every = np.cumsum(weights[order]), every[order] / unit

    def at(part: float) -> float:
        return float(every[min(int(np.searchsorted(below, part * below[-1])), len(every) - 1)])

    mean = float((every * weights[order]).sum() / below[-1])
    return SampleSeconds(sum(part.count for part in parts), mean, at(0.5), at(0.95), float(every[-1]))
