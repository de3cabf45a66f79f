"""Compute the noise of seconds that were measured in several steps.

A difference between two steps or two runs means nothing unless it exceeds the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb, hypot, sqrt
from statistics import median, stdev

FEWEST = 3
"""The number of steps from which their noise is known."""
FEWEST_JUDGED = 6
"""The number of steps from which the median has a 95 % interval: all of fewer steps lie on one side of the
true median with a probability of 1/16 or more.
"""
MOST_EXACT = 100
"""The number of steps up to which that interval is exact, and not that of a normal distribution."""
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""The 97.5th percentiles of Student's t distribution with 1 to 10 degrees of freedom."""


def student(degrees: int) -> float:
    """Return the 97.5th percentile of Student's t distribution, to 0.5 %.

    >>> student(1), round(student(20), 2), round(student(1000), 2)
    (12.71, 2.09, 1.96)
    """
    return _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else 1.96 + 2.6 / degrees


def noise_of_difference(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return by how much two single values may differ by chance; None: too few values are known.

    That is the 95 % interval of a difference of normal values, and at least the range of the known values:
    some steps have a checkpoint or an evaluation, which no normal distribution has.

    Args:
        a: other values of the same kind as the first one.
        b: other values of the same kind as the second one.
    """
    if len(a) < FEWEST or len(b) < FEWEST:
        return None
    deviations = hypot(*(student(len(of) - 1) * stdev(of) for of in (a, b)))
    return max(deviations, *(max(of) - min(of) for of in (a, b)))


EQUAL = 0.25
"""Processes did equal work if their range is at most this share of their median: a slow rank is no noise."""


def noise_of_processes(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the noise of a time by the spread between processes; None: none of the two sides has two processes
    that did equal work.

    Args:
        a: the times of the processes of one step.
        b: those of another step.
    """
    alike = [of for of in (a, b) if len(of) > 1 and max(of) - min(of) <= EQUAL * median(of)]
    if not alike:
        return None
    return hypot(*(student(len(of) - 1) * stdev(of) for of in (alike[0], alike[-1])))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the median: each value lies below the true one with probability 1/2.

    None: too few values.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count > MOST_EXACT:
        outside = int(count / 2 - 0.98 * sqrt(count)) - 1
    else:
        below = accumulate(comb(count, number) / 2**count for number in range(count))
        outside = sum(share <= 0.025 for share in below) - 1
    return (ordered[outside], ordered[-1 - outside]) if outside >= 0 else None
