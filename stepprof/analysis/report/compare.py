"""Compare two steps or two runs: find what became slower or faster by more than noise.

The noise of a figure is twice a standard deviation: between processes that did equal work, or
between the steps of a run, in A or in B. The largest that is known counts. A change within the
noise means nothing.

The spread between steps is known for spans, which a run has for every step. Operators and kernels
exist in recorded steps only. They are compared by self time per process, since two runs may have
recorded different numbers of ranks.

The gate (``--fail-on-regression``) compares two runs by the medians over their steps that were not
recorded. The noise of a median is its 95 % interval by order statistics, which assumes nothing about how
the steps are distributed. Two steps of one run are compared with each other; their noise is that of the
comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import hypot
from statistics import stdev

from stepprof.analysis.report.generations import SUMS
from stepprof.analysis.report.schema import (
    Change,
    Comparison,
    Finding,
    Gate,
    Op,
    Problem,
    Report,
    Spread,
    TimeOf,
)
from stepprof.analysis.report.step_noise import FEWEST, FEWEST_JUDGED
from stepprof.analysis.report.wording import seconds, seconds_text

MOST_CHANGES = 200
MOST_HEADLINES = 8
WORTH_SAYING = 0.01
"""Share of the step. A smaller change is not a finding. A smaller part that only one step has is
not a problem.
"""


_Key = tuple["str | None", "str | None"]
_Steps = Mapping[_Key, tuple[float, int]]
"""By role and region: twice the standard deviation between steps, and the number of steps."""


def compare(a: Report, b: Report, spreads: Sequence[Sequence[Spread]] = ()) -> Comparison:
    """Compare B with A, and list what became slower or faster.

    Args:
        a: the report of the step to compare with.
        b: the report of another step, of the same run or of another.
        spreads: how much the steps of each run differ, by `stepprof.analysis.report.step_noise.spreads`.
    """
    steps: dict[_Key, tuple[float, int]] = {}
    for each in (each for of_run in spreads for each in of_run):
        known = steps.get((each.role, each.region), (0.0, 0))
        steps[each.role, each.region] = max(known, (2 * each.deviation, each.steps))
    changes = [
        _change("step", "step", (a.seconds, b.seconds), None, steps.get((None, None))),
        *_times(a.roles, b.roles, "role", steps),
        *_times(a.regions, b.regions, "region", steps),
        *_ops(a.ops, b.ops, "op"),
        *_ops(a.kernels, b.kernels, "kernel"),
        *_rollouts(a, b),
    ]
    changes.sort(key=lambda change: -abs(change.b - change.a))
    return Comparison(
        a=_name(a),
        b=_name(b),
        findings=list(_findings(a, b, changes)),
        changes=changes[:MOST_CHANGES],
        problems=list(_problems(a, b)),
    )


def _name(report: Report) -> str:
    if report.step is None:
        return report.run_id
    of = f" ({report.occurrence} of {report.occurrences})" if report.occurrences > 1 else ""
    return f"{report.run_id} step {report.step}{of}"


def _change(
    what: str,
    topic: str,
    times: tuple[float, float],
    processes: float | None,
    steps: tuple[float, int] | None = None,
) -> Change:
    between, count = (None, 0) if steps is None else steps
    noise = max((each for each in (processes, between) if each is not None), default=None)
    significant = noise is not None and abs(times[1] - times[0]) > noise
    return Change(what, topic, times[0], times[1], noise, significant, processes, between, count)


def _noise(*sides: Sequence[float]) -> float | None:
    """Return twice the standard deviation over processes; None if neither side has two."""
    known = [2 * stdev(side) for side in sides if len(side) > 1]
    return max(known, default=None)


def _what(time: TimeOf) -> str:
    clock = "" if time.clock is None else f" on {time.clock}"
    return f"{_name_of(time)}{clock}"


def _name_of(time: TimeOf) -> str:
    if time.region is None:
        return time.role or "the whole step"
    return time.region if time.role is None else f"{time.role}: {time.region}"


def _times(a: Iterable[TimeOf], b: Iterable[TimeOf], topic: str, steps: _Steps) -> Iterable[Change]:
    before = {_what(time): time for time in a}
    for after in b:
        known = before.get(_what(after))
        if known is not None:
            noise = _noise(
                [time.seconds for time in known.per_process], [time.seconds for time in after.per_process]
            )
            of_steps = steps.get((after.role, after.region))
            yield _change(_what(after), topic, (known.seconds, after.seconds), noise, of_steps)


def _ops(a: Iterable[Op], b: Iterable[Op], topic: str) -> Iterable[Change]:
    before = {op.name: op for op in a}
    for after in b:
        known = before.get(after.name)
        if known is not None and known.per_process and after.per_process:
            sides = [[time.seconds for time in op.per_process] for op in (known, after)]
            means = (sum(sides[0]) / len(sides[0]), sum(sides[1]) / len(sides[1]))
            yield _change(after.name, topic, means, _noise(*sides))


def _rollouts(a: Report, b: Report) -> Iterable[Change]:
    """Compare engines with engines, and samples of processes with samples of processes."""
    before = {row.label: row for row in a.rollout}
    for after in b.rollout:
        known = before.get(after.label)
        if known is None:
            continue
        alike = [
            [
                row
                for row in report.rollout
                if bool(row.iterations) == bool(after.iterations) and not row.label.startswith(SUMS)
            ]
            for report in (a, b)
        ]
        noise = _noise(*([row.seconds for row in side] for side in alike))
        yield _change(after.label, "rollout", (known.seconds, after.seconds), noise)
        noise = _noise(*([row.tail for row in side] for side in alike))
        yield _change(f"{after.label}: tail", "rollout", (known.tail, after.tail), noise)


def _findings(a: Report, b: Report, changes: Sequence[Change]) -> Iterable[Finding]:
    step = next(change for change in changes if change.topic == "step")
    difference = b.seconds - a.seconds
    if abs(difference) < WORTH_SAYING * a.seconds:
        text = f"the step took {seconds_text(b.seconds)}, as long as before"
    else:
        text = f"the step took {_than(a.seconds, b.seconds)}; {noise_text(step)}"
    yield Finding(text, "step", abs(difference))
    reported = 0
    for change in changes:
        difference = abs(change.b - change.a)
        if change.topic == "step" or difference < WORTH_SAYING * a.seconds or reported == MOST_HEADLINES:
            continue
        if not change.significant and change.noise is not None:
            continue
        reported += 1
        text = f"{change.what} took {_than(change.a, change.b)}; {noise_text(change)}"
        yield Finding(text, change.topic, difference)


def noise_text(change: Change) -> str:
    """Return the noise of a change in words, with its origin."""
    if change.noise is None:
        if change.topic == "step":
            return "the noise is unknown: fewer than three other steps have spans"
        return "the noise is unknown: there is one process, and too few other steps have spans"
    text = f"the noise is {seconds_text(change.noise)}"
    if change.noise == change.noise_steps:
        text += f", from step to step ({change.steps} steps)"
    else:
        text += ", between processes"
    return text if change.significant else f"{text}: within noise"


def _than(before: float, after: float) -> str:
    more = f"{abs(after / before - 1):.0%} " if before > 0 else ""
    return f"{more}{'longer' if after > before else 'shorter'}: {seconds_text(before)} before, {seconds_text(after)} now"


def _problems(a: Report, b: Report) -> Iterable[Problem]:
    """Yield problems about what cannot be compared: parts that only one step has, and different numbers of
    processes.
    """
    names: list[Mapping[str, TimeOf]] = [
        {_what(time): time for time in (*report.roles, *report.regions)} for report in (a, b)
    ]
    for here, there, report, other in ((names[0], names[1], a, b), (names[1], names[0], b, a)):
        for what, time in here.items():
            if what not in there and time.share >= WORTH_SAYING:
                yield Problem(
                    _name(report),
                    f"{what} took {seconds_text(time.seconds)} and does not occur in {_name(other)}",
                )
    for what, time in names[0].items():
        counts = len(time.per_process), len(names[1][what].per_process) if what in names[1] else 0
        if time.region is None and counts[1] and counts[0] != counts[1]:
            yield Problem(None, f"{what}: {counts[0]} processes in A, {counts[1]} in B")
    for report in (a, b):
        if report.problems:
            yield Problem(_name(report), f"its report has {len(report.problems)} notes: it may be incomplete")


def gate(times: tuple[float, float], apart: Sequence[Sequence[Spread]], limit: float) -> Gate:
    """Judge B against A.

    Args:
        times: seconds of the two steps that are compared.
        apart: how much the steps of each run differ, by `stepprof.analysis.report.step_noise.spreads`;
            one entry if both steps are of one run.
        limit: the largest tolerated increase, as a share of A.
    """
    whole = [next((row for row in rows if (row.role, row.region) == (None, None)), None) for rows in apart]
    if len(whole) == 2:
        return _of_runs(whole[0], whole[1], limit)
    if not whole or whole[0] is None:
        return _unknown("fewer than three steps that were not recorded have spans", limit)
    noise = 2 * whole[0].deviation
    basis = f"two steps of one run, noise from {whole[0].steps} other steps"
    return _judged(times, (noise, noise), limit, basis)


def _of_runs(a: Spread | None, b: Spread | None, limit: float) -> Gate:
    if a is None or a.interval is None:
        return _too_few("A", a, limit)
    if b is None or b.interval is None:
        return _too_few("B", b, limit)
    # the interval of a difference from those of both medians (Zou and Donner)
    (a_low, a_high), (b_low, b_high) = a.interval, b.interval
    down, up = hypot(b.median - b_low, a_high - a.median), hypot(b_high - b.median, a.median - a_low)
    basis = f"medians over {a.steps} and {b.steps} steps that were not recorded"
    return _judged((a.median, b.median), (down, up), limit, basis)


def _too_few(name: str, row: Spread | None, limit: float) -> Gate:
    count = f"fewer than {FEWEST}" if row is None else str(row.steps)
    why = f"run {name} has the spans of {count} steps that can be compared and needs {FEWEST_JUDGED}"
    return _unknown(f"{why}: recorded steps and the first one do not count", limit)


def _unknown(why: str, limit: float) -> Gate:
    return Gate("unknown", limit, f"cannot be judged: {why}")


def _judged(times: tuple[float, float], noise: tuple[float, float], limit: float, basis: str) -> Gate:
    """Judge two times.

    Args:
        times: of A and of B.
        noise: how far the true difference may lie below and above the measured one.
        limit: as `gate` takes it.
        basis: what was compared.
    """
    a, b = times
    if a <= 0:
        return _unknown("the step of A has no duration", limit)
    difference, allowed = b - a, limit * a
    percent = f"{100 * limit:.4g}%"
    figures = (
        f"{seconds(a)} before, {seconds(b)} now ({difference / a:+.1%}, noise {max(noise) / a:.1%}; {basis})"
    )
    if difference > max(allowed, noise[0]):
        verdict, text = "regression", f"regression above {percent}"
    elif difference + noise[1] <= allowed or max(noise) <= allowed:
        verdict, text = "none", f"no regression above {percent}"
    else:
        verdict, text = "unknown", f"cannot be judged: the noise hides a change of {percent}"
    return Gate(verdict, limit, f"{text}: {figures}", a, b, max(noise))
