"""Decide whether B is a regression of A, beyond a limit and beyond noise.

Two runs are compared by the medians over their steps that were not recorded. The noise of a median is
its 95 % interval by order statistics, which assumes nothing about how the steps are distributed. Two
steps of one run are compared with each other; their noise is that of the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from stepprof.analysis.report.schema import Gate, Spread
from stepprof.analysis.report.step_noise import FEWEST, FEWEST_JUDGED
from stepprof.analysis.report.wording import seconds


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
