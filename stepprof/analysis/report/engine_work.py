"""Collect the forward steps of an engine's schedulers: their batch sizes over time, and the sums of prefill, decode and mixed steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import EMPTY, Indices, Intervals, Moments, Times
from stepprof.analysis.report.rollout import MOST_POINTS, Curve, PackedCurve, total_curve
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.iterations import ForwardStep, forward_step, occupied
from stepprof.analysis.timeline.model import Source

STAGES = ("prefill", "decode", "mixed", "other")

MOST_SURPLUS = 1024
"""Maximum number of stretches of `surplus` in a digest, the longest ones."""
ALIKE = 0.9
"""Two workers with a larger share of equal steps belong to one scheduler."""


class StageTotal(msgspec.Struct, frozen=True):
    """The forward steps of one stage, of one engine."""

    stage: str
    iterations: int
    nanoseconds: int
    prefill_tokens: int | None
    """None: not stated by every step."""
    decode_tokens: int | None


class Batches(PackedCurve, frozen=True):
    """The batch sizes of one engine's worker over time, packed; 0 where nothing ran."""

    iterations: int
    peak: float
    """The peak of single iterations; a mean over many is lower."""
    stages: list[StageTotal]
    """The same iterations by stage."""
    surplus: Moments
    """Packed intervals: the extra time of iterations with more than one token per continued sequence."""
    opening_tokens: int
    """The tokens of prompts before the first decode step of each scheduler."""
    repeats: Moments
    """Packed intervals: when it worked on prompts alone after that."""


def batches_of(source: Source, which: Indices) -> Batches | None:
    """Return the batch sizes of all schedulers in the file.

    Workers of one scheduler run the same steps. Those of different schedulers (data parallelism) do
    not.

    Args:
        source: of the file.
        which: its counters of batch sizes.
    """
    counters = source.counters
    curves = []
    for track in distinct(counters.track[which]).tolist():
        mine = which[counters.track[which] == track]
        mine = mine[np.argsort(counters.time[mine], kind="stable")]
        if len(mine) > 1:
            curves.append(Curve(counters.time[mine], counters.value[mine][:-1]))
    curves = [curves[at] for at in _schedulers(curves)]
    if not curves:
        return None
    # a step without a request (vLLM has such steps) counts as none
    worked = sum(int(np.count_nonzero(curve.value > 0)) for curve in curves)
    curve = total_curve(curves) if len(curves) > 1 else curves[0]
    schedulers = _forward_steps(source)
    stages = added(stage for each in schedulers for stage in each.stages())
    if sum(each.iterations for each in stages) != worked:  # the steps are not those of the batch sizes
        schedulers, stages = [], []
    repeats = [each.repeats() for each in schedulers]
    return Batches(
        *curve.reduced(MOST_POINTS).pack(),
        worked,
        float(curve.value.max()),
        stages,
        Intervals.all_of(each.surplus() for each in schedulers).pack(),
        sum(opening for opening, _ in repeats),
        Intervals.all_of(later for _, later in repeats).pack(),
    )


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


@dataclass(frozen=True, slots=True, eq=False)
class _ForwardSteps:
    """The forward steps of one scheduler, in order."""

    kinds: list[ForwardStep | None]
    """What each name of a step states."""
    kind: Indices
    """The name of each step."""
    start: Times
    length: Times
    """How long each one occupied the engine."""
    end: int
    """The end of the last one."""

    def curve(self) -> Curve:
        """Return the batch sizes."""
        sizes = np.array([0 if kind is None else kind.sequences for kind in self.kinds], np.float64)
        return Curve(np.append(self.start, self.end), sizes[self.kind])

    def stages(self) -> list[StageTotal]:
        """Return the sums of the steps of each name that worked on requests."""
        found = []
        for number, kind in enumerate(self.kinds):
            if kind is not None and kind.sequences:
                mine = self.kind == number
                calls = int(np.count_nonzero(mine))
                prefill, decode = (
                    None if tokens is None else calls * tokens
                    for tokens in (kind.prefill_tokens, kind.decode_tokens)
                )
                found.append(StageTotal(kind.stage, calls, int(self.length[mine].sum()), prefill, decode))
        return found

    def surplus(self) -> Intervals:
        """Return the extra time of steps with more than one token per continued sequence: the end of each such
        step, by which it exceeds the median of the other decode steps.

        Such tokens were computed again after a preemption, or were speculated.
        """
        more = self._where(lambda kind: kind.surplus > 0)
        plain = self._where(lambda kind: kind.stage == "decode") & ~more
        if not more.any() or not plain.any():
            return EMPTY
        usual = int(np.median(self.length[plain]))
        longer = self._longest(np.flatnonzero(more & (self.length > usual)))
        return Intervals.union(self.start[longer] + usual, self.start[longer] + self.length[longer])

    def repeats(self) -> tuple[int, Intervals]:
        """Return the tokens of prompts in the steps before the first decode step, and when the scheduler worked on
        prompts alone after that.

        A sequence is retracted (SGLang) only once it generates, and computed again as a prompt.
        """
        decode = np.flatnonzero(self._where(lambda kind: kind.stage == "decode"))
        first = int(decode[0]) if len(decode) else len(self.kind)
        opening = [self.kinds[number] for number in self.kind[:first].tolist()]
        later = first + np.flatnonzero(self._where(lambda kind: kind.stage == "prefill")[first:])
        longest = self._longest(later)
        again = Intervals.union(self.start[longest], self.start[longest] + self.length[longest])
        return sum(kind.prefill_tokens or 0 for kind in opening if kind is not None), again

    def _where(self, fits: Callable[[ForwardStep], bool]) -> npt.NDArray[np.bool_]:
        return np.array([kind is not None and fits(kind) for kind in self.kinds], bool)[self.kind]

    def _longest(self, which: Indices) -> Indices:
        return which[np.argsort(-self.length[which], kind="stable")][:MOST_SURPLUS]


def _forward_steps(source: Source) -> list[_ForwardSteps]:
    """Return the forward steps of each scheduler."""
    slices, rows = source.slices, []
    for number, track in enumerate(source.tracks):
        which = np.flatnonzero(slices.track == number) if track.kind == "iterations" else np.zeros(0, np.intp)
        if len(which):
            which = which[np.argsort(slices.start[which], kind="stable")]
            start, end = slices.start[which], slices.start[which] + slices.duration[which]
            names, kind = np.unique(slices.name[which], return_inverse=True)
            kinds = [forward_step(source.names[name]) for name in names.tolist()]
            rows.append(_ForwardSteps(kinds, kind, start, occupied(start, end), int(end[-1])))
    return [rows[at] for at in _schedulers([row.curve() for row in rows])]


def added(totals: Iterable[StageTotal]) -> list[StageTotal]:
    """Return the sums by stage, in the order of `STAGES`."""
    by_stage: dict[str, list[StageTotal]] = {}
    for each in totals:
        by_stage.setdefault(each.stage, []).append(each)
    return [_sum(stage, by_stage[stage]) for stage in STAGES if stage in by_stage]


def _sum(stage: str, parts: Sequence[StageTotal]) -> StageTotal:
    return StageTotal(
        stage,
        sum(part.iterations for part in parts),
        sum(part.nanoseconds for part in parts),
        total([part.prefill_tokens for part in parts]),
        total([part.decode_tokens for part in parts]),
    )


def total(amounts: Sequence[int | None]) -> int | None:
    """Return a sum; None if a part of it is unknown.

    >>> total([1, 2]), total([1, None])
    (3, None)
    """
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None
