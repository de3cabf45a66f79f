"""Sum up the forward steps of an engine: prefill, decode and mixed steps, with their time and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.timeline.iterations import ForwardStep, forward_step, occupied
from stepprof.analysis.timeline.model import Source

STAGES = ("prefill", "decode", "mixed", "other")

MOST_SURPLUS = 1024
"""Maximum number of stretches of `surplus` in a digest, the longest ones."""

Indices = npt.NDArray[np.intp]


class StageTotal(msgspec.Struct, frozen=True):
    """The forward steps of one stage, of one engine."""

    stage: str
    iterations: int
    nanoseconds: int
    prefill_tokens: int | None
    """None: not stated by every step."""
    decode_tokens: int | None


def stage_totals(source: Source, which: Indices) -> list[StageTotal]:
    """Return the stages of the forward steps of one scheduler.

    Args:
        source: of the slices.
        which: the slices of the scheduler's steps. Steps that worked on no request are left out.
    """
    slices = source.slices
    which = which[np.argsort(slices.start[which], kind="stable")]
    start = slices.start[which]
    lengths = occupied(start, start + slices.duration[which]) if len(which) else start
    reported = {
        number: forward_step(source.names[number]) for number in np.unique(slices.name[which]).tolist()
    }
    found: list[StageTotal] = []
    for number, step in reported.items():
        if step is not None and step.sequences:
            mine = slices.name[which] == number
            found.append(_of_name(step, int(np.count_nonzero(mine)), int(lengths[mine].sum())))
    return added(found)


def surplus(source: Source, which: Indices) -> Intervals:
    """Return the extra time of one scheduler's forward steps with more than one token per continued sequence: the end
    of each such step, by which it exceeds the median of the other decode steps.

    Such tokens were computed again after a preemption, or were speculated.
    """
    slices = source.slices
    which = which[np.argsort(slices.start[which], kind="stable")]
    reported = {
        number: forward_step(source.names[number]) for number in np.unique(slices.name[which]).tolist()
    }
    more = np.array([step is not None and step.surplus > 0 for step in reported.values()], bool)
    plain = (
        np.array([step is not None and step.stage == "decode" for step in reported.values()], bool) & ~more
    )
    place = np.searchsorted(np.array(list(reported)), slices.name[which])
    if not more.any() or not plain.any():
        return EMPTY
    start = slices.start[which]
    lengths = occupied(start, start + slices.duration[which])
    usual = int(np.median(lengths[plain[place]]))
    longer = np.flatnonzero(more[place] & (lengths > usual))
    longer = longer[np.argsort(usual - lengths[longer], kind="stable")][:MOST_SURPLUS]
    return Intervals.union(start[longer] + usual, start[longer] + lengths[longer])


def repeats(source: Source, which: Indices) -> tuple[int, Intervals]:
    """Return the tokens of prompts in one scheduler's forward steps before its first decode step, and when it worked on
    prompts alone after that.

    A sequence is retracted (SGLang) only once it generates, and computed again as a prompt.
    """
    slices = source.slices
    which = which[np.argsort(slices.start[which], kind="stable")]
    steps = [forward_step(source.names[number]) for number in slices.name[which].tolist()]
    first = next(
        (at for at, step in enumerate(steps) if step is not None and step.stage == "decode"), len(steps)
    )
    opening = sum(step.prefill_tokens or 0 for step in steps[:first] if step is not None)
    later = [
        at for at in range(first, len(steps)) if (step := steps[at]) is not None and step.stage == "prefill"
    ]
    if not later:
        return opening, EMPTY
    start = slices.start[which]
    lengths = occupied(start, start + slices.duration[which])
    longest = np.array(sorted(later, key=lambda at: -lengths[at])[:MOST_SURPLUS], np.intp)
    return opening, Intervals.union(start[longest], start[longest] + lengths[longest])


def _of_name(step: ForwardStep, calls: int, nanoseconds: int) -> StageTotal:
    return StageTotal(
        step.stage, calls, nanoseconds, _times(calls, step.prefill_tokens), _times(calls, step.decode_tokens)
    )


def _times(calls: int, tokens: int | None) -> int | None:
    return None if tokens is None else calls * tokens


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
