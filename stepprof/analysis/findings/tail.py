"""Find the long tail of a rollout: the last few samples, for which everything else waits."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.rollout import Curve, total_curve
from stepprof.analysis.report.wording import seconds_text

LAST = 0.05
"""Share of the samples that make the tail, at least one: it begins at the 95th percentile."""
FEWEST = 4
LEAST = 0.15
"""The end of a rollout is no tail if it is at most this share of the rollout."""

_KINDS = ("engine", "work")


def long_tail(ledger: Ledger) -> None:
    """Claim the time in which at most the last 5 % of the samples were generated."""
    facts = ledger.facts
    engines, samples = _curves(facts)
    for curves, what in ((engines, "sequences"), (samples, "samples")):
        if not curves:
            continue
        curve = total_curve(curves) if len(curves) > 1 else curves[0]
        begins = _tail_begins(curve)
        if begins is None or curve.time[-1] - begins <= LEAST * (curve.time[-1] - curve.time[0]):
            continue
        when = Intervals.one(begins, int(curve.time[-1]))
        segment = next(
            (each for each in reversed(facts.path) if each.start < when.end[0] and each.kind in _KINDS), None
        )
        if segment is None:
            continue
        last, most = max(1, int(LAST * curve.value.max())), int(curve.value.max())
        if ledger.claim(
            Part(segment.process, segment.role, segment.region or _region_of(facts), when),
            when,
            "tail",
            f"the rollout's tail took {{seconds}}: of {most} {what} at most {last} {'was' if last == 1 else 'were'} still generated",
            why=_longest(facts) or "the batch had fallen to 5 % of its peak",
            advice="bound the response length, generate more samples than needed and drop the last ones, or start training on those that are done",
            without=_generating(facts, when),
            assumption="the rollout ends at the 95th percentile of its samples",
        ):
            return


def _generating(facts: Facts, when: Intervals) -> dict[str, Intervals]:
    """Return when each process generated, or had samples, in a time."""
    found = {}
    for label, each in facts.timelines.items():
        of = each.generating
        if any(digest.samples is not None for digest in each.process.digests):
            of |= when
        found[label] = of & when
    return found


def _curves(facts: Facts) -> tuple[list[Curve], list[Curve]]:
    digests = [digest for each in facts.timelines.values() for digest in each.process.digests]
    engines = [digest.batches.curve() for digest in digests if digest.batches is not None]
    samples = [
        digest.samples.curve()
        for digest in digests
        if digest.samples is not None and digest.origin.kind == "spans"
    ]
    return engines, [curve for curve in samples if curve.value.max(initial=0) >= FEWEST]


def _tail_begins(curve: Curve) -> int | None:
    """Return when the number last fell to 5 % of its peak; None: it never was that high."""
    peak = float(curve.value.max(initial=0))
    if peak < FEWEST:
        return None
    above = (curve.value > max(1.0, LAST * peak)).nonzero()[0]
    return int(curve.time[above[-1] + 1]) if len(above) else None


def _region_of(facts: Facts) -> tuple[str, ...]:
    """Return the region in which the longest sample spent most time."""
    samples = [sample for row in facts.rollouts for sample in row.samples if sample.seconds]
    longest = max(samples, key=lambda sample: sample.end - sample.start, default=None)
    return () if longest is None else (max(longest.seconds, key=lambda name: longest.seconds[name]),)


def _longest(facts: Facts) -> str | None:
    samples = [(sample.end - sample.start, sample) for row in facts.rollouts for sample in row.samples]
    if not samples:
        return None
    took, sample = max(samples, key=lambda each: each[0])
    return f"the longest sample, {sample.sample}, took {seconds_text(took)}"
