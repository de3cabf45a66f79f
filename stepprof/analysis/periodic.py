"""Find the period of steps that are alike, and the steps of a run that warm it up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd
from statistics import median

FEWEST = 3
"""A period is named if at least this many steps show it, this one included."""
MOSTLY = 2 / 3
"""And if at least this share of the steps that are alike is on it."""
MOST_WARM_UP = 10
"""The maximum number of steps of a process that warm it up."""
BEYOND = 0.02
"""A usual value is said to be outside of the others if it is so by this share of their median."""
BEYOND_SECONDS = 0.002
CLOSE = 0.05
"""Share of the median within which a value is usual, however little the others vary."""
SPREAD = 4.5
"""Deviations from the median, in medians of the others' deviations, beyond which a value is unusual: three standard deviations
of a normal distribution.
"""


def period(step: int, alike: Collection[int], known: Collection[int]) -> int | None:
    """Return the smallest period on which each known step is alike; None: there is none, or too few steps show it.

    It is a multiple of the distance of known steps, which is more than 1 in a loop that counts in tens.

    Args:
        step: the step in question.
        alike: the other steps that are like it.
        known: all other steps that are known.

    >>> period(14, [7, 21, 28], range(1, 31)), period(14, [7, 21], [*range(1, 14), *range(15, 25)])
    (7, 7)
    >>> period(60, [120, 180], range(10, 240, 10))
    60
    >>> period(14, [21], range(8, 25)) is None, period(14, [7, 9, 21, 26, 30], range(8, 31)) is None
    (True, True)
    """
    same = set(alike) - {step}
    if len(same) + 1 < FEWEST:
        return None
    others = set(known) - {step}
    stride = gcd(*(each - step for each in others))
    for length in range(max(stride, 2), max(abs(each - step) for each in same) + 1, stride):
        on = {each for each in others if (each - step) % length == 0}
        if len(on) + 1 >= FEWEST and on <= same and len(on) + 1 >= MOSTLY * (len(same) + 1):
            return length
    return None


def every(length: int) -> str:
    """Return a period in words.

    >>> [every(length) for length in (2, 3, 7, 11, 21, 42)]
    ['every 2nd step', 'every 3rd step', 'every 7th step', 'every 11th step', 'every 21st step', 'every 42nd step']
    """
    last = "th" if length % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(length % 10, "th")
    return f"every {length}{last} step"


def tolerance(values: Sequence[float]) -> float:
    """Return how far from their median a value is usual. One extreme value does not change it."""
    middle = median(values)
    return max(SPREAD * median(abs(value - middle) for value in values), CLOSE * middle)


def extreme(value: float, others: Sequence[float], unknown: float = 0.0) -> str:
    """Return how a usual value is nevertheless outside of all others, by more than their seconds are uncertain; else nothing.

    Args:
        value: of one step.
        others: of the other steps.
        unknown: by how much the value may be wrong.

    >>> extreme(5.8, [4.0, 5.0, 5.5]), extreme(5.51, [4.0, 5.0, 5.5]), extreme(3.8, [4.0, 5.0, 5.5])
    (', but longer than each of them', '', ', but shorter than each of them')
    """
    margin = max(BEYOND * median(others), BEYOND_SECONDS) + unknown
    if value > max(others) + margin:
        return ", but longer than each of them"
    return ", but shorter than each of them" if value < min(others) - margin else ""


def warm_up(values: Sequence[float]) -> int:
    """Return how many of the first values are those of a warm-up: each exceeds what is usual for those after it.

    >>> warm_up([9.0, 4.0, 1.0, 1.1, 1.0, 1.0, 5.0]), warm_up([1.0, 9.0, 1.0, 1.0]), warm_up([3.0, 2.0])
    (2, 0, 0)
    """
    for count in range(min(MOST_WARM_UP, len(values) // 2, len(values) - FEWEST), 0, -1):
        rest = values[count:]
        if min(values[:count]) > median(rest) + tolerance(rest):
            return count
    return 0
