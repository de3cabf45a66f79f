"""Judge whether B is a regression of A (``--fail-on-regression``).

Two runs are compared by the medians over the steps that both have, without recorded steps and the first one.
A step lasts from its begin to the begin of the next one, by the clock of one process. Where windows cover
less than half of that, what happens between them may not belong to the step, so the windows are judged too.
The noise of a median is its 95 % interval by order statistics, which assumes nothing about how the steps are
distributed.

Of steps that torch's profiler marked in a trace, each lasts from its mark to the next one.

Two steps of one run are compared with each other, by their windows; their noise is that of single steps.

Runs are not judged if a process has spans of a step in one of them alone, or if ranks have none in both. Their windows are
not judged if one of them alone has windows of a role in half of the steps or more: the other one may have done that work outside of windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from math import hypot
from statistics import median

from msgspec.structs import replace

from stepprof.analysis.report.schema import Gate
from stepprof.analysis.report.step_noise import (
    FEWEST,
    FEWEST_JUDGED,
    median_interval,
    noise_of_difference,
)
from stepprof.analysis.report.step_times import RunSteps, Visit
from stepprof.analysis.report.wording import seconds
from stepprof.formatting import ranges
from stepprof.run.summary import Rank

MOST_OF_STEP = 0.5
"""Share of the time from begin to begin from which windows cover most of it."""


def gate_runs(a: RunSteps, b: RunSteps, limit: float) -> Gate:
    """Judge run B against run A.

    Args:
        a: the steps of the run before.
        b: the steps of the run after.
        limit: the largest tolerated increase, as a share of A.
    """
    for name, run in (("A", a), ("B", b)):
        if len(run.usual) < FEWEST_JUDGED:
            count = f"{len(run.usual)} step{'s' * (len(run.usual) != 1)}"
            if run.marked:
                why = f"torch's profiler marked {count} in {name}, and {FEWEST_JUDGED} are needed"
                return _unknown(why, limit)
            why = f"run {name} has the spans of {count} that can be compared and needs {FEWEST_JUDGED}"
            return _unknown(f"{why}: recorded steps and the first one do not count", limit)
    both = sorted({*a.usual} & {*b.usual})
    if len(both) < FEWEST_JUDGED:
        return _unknown(
            f"{len(both)} steps that can be compared are in both runs, and {FEWEST_JUDGED} are needed: "
            f"A has {_steps(a.usual)}, B has {_steps(b.usual)}",
            limit,
        )
    missing = _missing(("run A", a, both), ("run B", b, both))
    if missing is not None:
        return _unknown(missing, limit)
    judged = _judged_steps(a, b, both, limit)
    lacking = [visit for visit in a.usual if visit not in b.windows or b.is_cut(visit)]
    if not lacking:
        return judged
    step = "step" if len(lacking) == 1 else "steps"
    return replace(judged, text=f"{judged.text}; run A alone has finished {step} {_numbers(lacking)}")


def _judged_steps(a: RunSteps, b: RunSteps, both: Sequence[Visit], limit: float) -> Gate:
    """Judge the steps that both runs have."""
    if a.marked:
        return _judged_medians(
            a.windows, b.windows, both, limit, f"{len(both)} steps that torch's profiler marked"
        )
    whole = [visit for visit in both if visit in a.lengths and visit in b.lengths]
    of = "steps that were not recorded"
    from_windows = f"{len(both)} {of}, from the first window to the last"
    windows = _judged_medians(a.windows, b.windows, both, limit, from_windows)
    alone = _alone(*(_usual_roles(run, both) for run in (a, b)))
    if alone is not None:
        windows = _unknown(f"run {alone} in half of the steps or more", limit)
    if len(whole) < FEWEST_JUDGED:
        return _by_windows(windows, [[run.lengths[visit] for visit in whole] for run in (a, b)])
    begins = _judged_medians(a.lengths, b.lengths, whole, limit, f"{len(whole)} {of}, from begin to begin")
    if any(_share(run, whole) >= MOST_OF_STEP for run in (a, b)):
        return begins
    worst = ("regression", "unknown", "none")
    return min((windows, begins), key=lambda each: worst.index(each.verdict))


def _by_windows(windows: Gate, lengths: Sequence[Sequence[float]]) -> Gate:
    """Return the verdict about the windows, unless the few times from begin to begin contradict it."""
    few = f"the time until the next step is known in {len(lengths[0])} steps, too few to judge it"
    if lengths[0]:
        is_longer = median(lengths[1]) > (1 + windows.limit) * median(lengths[0])
        if windows.verdict == ("none" if is_longer else "regression"):
            before, after = (seconds(median(of)) for of in lengths)
            figures = f"{before} before and {after} now from begin to begin"
            return _unknown(
                f"the windows show {windows.text}; they contradict {figures}, and {few}", windows.limit
            )
    return replace(windows, text=f"{windows.text}; {few}")


def _share(run: RunSteps, visits: Sequence[Visit]) -> float:
    """Return the share of its windows in the time from begin to begin."""
    whole = median(run.lengths[visit] for visit in visits)
    return median(run.windows[visit] for visit in visits) / whole if whole else 1.0


def gate_steps(run: RunSteps, a: Visit | None, b: Visit | None, limit: float) -> Gate:
    """Judge one step of a run against another one.

    Args:
        run: the steps of the run.
        a: the step before; None: it has no spans.
        b: the step after; None: it has no spans.
        limit: the largest tolerated increase, as a share of A.
    """
    if a is None or b is None:
        return _unknown(f"step {'A' if a is None else 'B'} has no windows in the spans", limit)
    missing = _missing((f"step {a[0]}", run, [a]), (f"step {b[0]}", run, [b]))
    if missing is not None:
        return _unknown(missing, limit)
    for name, visit in (("A", a), ("B", b)):
        if visit in run.first:
            return _unknown(
                f"step {name} is the first one of its process, which takes longer than the others", limit
            )
        if run.is_cut(visit):
            return _unknown(f"a process did not finish step {name}", limit)
    roles = run.roles(a)
    alone = _alone(roles, run.roles(b))
    if alone is not None:
        return _unknown(f"step {alone}: it is more work", limit)
    others = [run.windows[visit] for visit in run.usual if visit not in (a, b) and run.roles(visit) == roles]
    noise = noise_of_difference(others, others)
    if noise is None:
        why = f"fewer than {FEWEST} other steps that were not recorded have spans, with the same roles"
        return _unknown(why, limit)
    basis = (
        f"two steps of one run, noise from {len(others)} other steps, from the first window to the last: "
        "the time until the next step does not count"
    )
    return _judged((run.windows[a], run.windows[b]), (noise, noise), limit, basis)


def _usual_roles(run: RunSteps, visits: Sequence[Visit]) -> set[str | None]:
    """Return the roles that have windows in at least half of some steps: others cannot change the median."""
    count = Counter(role for visit in visits for role in run.roles(visit))
    return {role for role, times in count.items() if 2 * times >= len(visits)}


def _alone(a: Set[str | None], b: Set[str | None]) -> str | None:
    """Return which of two sides has windows of roles that the other one lacks; None: neither."""
    for name, roles in (("A", a - b), ("B", b - a)):
        if roles:
            return f"{name} alone has windows of {', '.join(sorted(role or 'no role' for role in roles))}"
    return None


def _missing(*sides: tuple[str, RunSteps, Sequence[Visit]]) -> str | None:
    """Return the processes without spans, if that keeps the two sides from being compared."""
    (a_name, a, a_visits), (b_name, b, b_visits) = sides
    for before, after in zip(a_visits, b_visits, strict=True):
        ranks = a.ranks(before), b.ranks(after)
        if ranks[0] == ranks[1]:
            continue
        for name, mine, others, visit in (
            (b_name, ranks[1], ranks[0], after),
            (a_name, ranks[0], ranks[1], before),
        ):
            lacking = _less(others, mine)
            if lacking:
                other = a_name if name == b_name else b_name
                return f"{name} has no spans of {_named(lacking)} in step {visit[0]}, which {other} has"
    for name, run, visits in sides:
        number = min(len({rank for rank in run.ranks(visit) if rank != "driver"}) for visit in visits)
        if run.world_size is not None and number < run.world_size:
            return f"{name} has the spans of {number} of its {run.world_size} ranks"
    return None


def _less(ranks: Sequence[Rank], others: Sequence[Rank]) -> list[Rank]:
    """Return the ranks without the others; each counts as often as it occurs."""
    left = [*ranks]
    for rank in others:
        if rank in left:
            left.remove(rank)
    return left


def _named(ranks: Sequence[Rank]) -> str:
    numbers = [rank for rank in ranks if isinstance(rank, int)]
    names = [rank for rank in ranks if isinstance(rank, str)]
    kind = "rank" if len(numbers) == 1 else "ranks"
    return ", ".join([*names, *([f"{kind} {ranges(numbers)}"] if numbers else [])])


def _steps(visits: Iterable[Visit]) -> str:
    return f"steps {_numbers(visits)}"


def _numbers(visits: Iterable[Visit]) -> str:
    return ranges(sorted({step for step, _ in visits}))


def _judged_medians(
    a: Mapping[Visit, float], b: Mapping[Visit, float], visits: Sequence[Visit], limit: float, which: str
) -> Gate:
    sides = [[of[visit] for visit in visits] for of in (a, b)]
    before, after = map(median, sides)
    intervals = [median_interval(side) for side in sides]
    if intervals[0] is None or intervals[1] is None:
        return _unknown(f"fewer than {FEWEST_JUDGED} steps can be compared", limit)
    # the interval of a difference from those of both medians (Zou and Donner)
    (a_low, a_high), (b_low, b_high) = intervals[0], intervals[1]
    basis = f"medians over {which}"
    down, up = hypot(after - b_low, a_high - before), hypot(b_high - after, before - a_low)
    return _judged((before, after), (down, up), limit, basis)


def _unknown(why: str, limit: float) -> Gate:
    return Gate("unknown", limit, f"cannot be judged: {why}")


def _judged(times: tuple[float, float], noise: tuple[float, float], limit: float, basis: str) -> Gate:
    """Judge two times.

    Args:
        times: of A and of B.
        noise: how far the true difference may lie below and above the measured one.
        limit: the largest tolerated increase, as a share of A.
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
