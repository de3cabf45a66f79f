"""Find the long tail of a rollout: the last few samples, for which everything else waits."""

from __future__ import annotations

from collections.abc import Iterator

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.named_work import is_evaluation
from stepprof.analysis.report.generations import Generation
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.rollout import Curve
from stepprof.analysis.report.schema import Sample
from stepprof.analysis.report.wording import seconds_text, share

LAST = 0.05
"""Share of the samples that make the tail, at least one: it begins at the 95th percentile."""
FEWEST = 4
LEAST = 0.15
"""The end of a rollout is no tail if it is at most this share of the rollout."""
ROLLOUT = ("rollout", None)
"""Roles whose generation is called the rollout."""

_KINDS = ("engine", "work")


def long_tail(ledger: Ledger) -> None:
    """Claim, role by role, the time in which at most the last 5 % of its samples were generated.

    An evaluation needs all of them, and is a finding as a whole.
    """
    claimed: set[str | None] = set()
    for each in ledger.facts.generations:
        if each.whole and not each.unclear and each.role not in claimed and not is_evaluation(each.role):
            claims = [_claim(ledger, each, curve) for curve in _phases(ledger.facts, each)]
            if any(claims):
                claimed.add(each.role)


def _phases(facts: Facts, generation: Generation) -> Iterator[Curve]:
    """Yield the generation in each window of its role; what is generated outside of them does not keep the step waiting."""
    role = generation.role
    windows = Intervals.all_of(each.process.in_role(role) for each in facts.timelines.values())
    for start, end in windows.pairs() or [(facts.start, facts.end)]:
        curve = generation.curve.within(start, end)
        if curve is not None:
            yield curve


def _claim(ledger: Ledger, generation: Generation, curve: Curve) -> bool:
    facts, role = ledger.facts, generation.role
    begins, end = _tail_begins(curve), int(curve.time[-1])
    if begins is None or end - begins <= LEAST * (end - int(curve.time[0])):
        return False
    when = Intervals.one(begins, end)
    segment = next((each for each in reversed(facts.path) if each.start < end and each.kind in _KINDS), None)
    if segment is None:
        return False
    last, most = max(1, int(LAST * curve.value.max())), int(curve.value.max())
    what = "samples" if generation.samples else "sequences"
    sample = _longest(facts, when)
    return ledger.claim(
        Part(segment.process, segment.role, segment.region or _region_of(sample), when),
        when,
        "tail",
        f"the {'rollout' if role in ROLLOUT else role}'s tail took {{seconds}}: of {most} {what} at most {last} {'was' if last == 1 else 'were'} still generated",
        why=f"the batch had fallen to {share(last / most)} of its peak"
        if sample is None
        else f"the longest sample, {sample.sample}, took {seconds_text(sample.end - sample.start)}",
        advice="bound the response length, generate more samples than needed and drop the last ones, or start training on those that are done",
        without=_generating(facts, generation, when),
        assumption=f"the {'rollout' if role in ROLLOUT else role} ends at the 95th percentile of its samples",
    )


def _generating(facts: Facts, generation: Generation, when: Intervals) -> dict[str, Intervals]:
    """Return when each process generated for the role in a time. A process that binds samples has some all the time."""
    binds = {
        label
        for each in facts.generations
        if each.samples and each.role == generation.role
        for label in each.labels
    }
    labels = binds.union(generation.labels) & facts.timelines.keys()
    return {label: when if label in binds else facts.timelines[label].generating & when for label in labels}


def _tail_begins(curve: Curve) -> int | None:
    """Return when the number last fell to 5 % of its peak; None: it never was that high."""
    peak = float(curve.value.max(initial=0))
    if peak < FEWEST:
        return None
    above = (curve.value > max(1.0, LAST * peak)).nonzero()[0]
    return int(curve.time[above[-1] + 1]) if len(above) else None


def _longest(facts: Facts, tail: Intervals) -> Sample | None:
    """Return the longest of the samples that ended in the tail."""
    (start, end), *_ = tail.pairs()
    samples = [
        sample
        for row in facts.rollouts
        for sample in row.samples
        if facts.at(start) < sample.end <= facts.at(end) + _ROUNDING
    ]
    return max(samples, key=lambda sample: sample.end - sample.start, default=None)


_ROUNDING = 1e-6


def _region_of(sample: Sample | None) -> tuple[str, ...]:
    """Return the region in which a sample spent most time."""
    if sample is None or not sample.seconds:
        return ()
    return (max(sample.seconds, key=lambda name: sample.seconds[name]),)
