"""Read the attributes of regions and windows that state how much work was done.

`tokens`, `samples` and `batch_size` have a fixed meaning (docs/concepts.md); all other attributes are
the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, linear_regression
from typing import TypeGuard

AMOUNTS = ("tokens", "samples", "batch_size")
_LARGEST = 1e18


def amounts(attributes: object) -> dict[str, float]:
    """Return the amounts among the attributes of a span; values that are no amount are left out.

    >>> amounts({"tokens": 4096, "samples": -1, "batch_size": "8", "loss": 0.5})
    {'tokens': 4096.0}
    """
    if not isinstance(attributes, Mapping):
        return {}
    return {key: float(attributes[key]) for key in AMOUNTS if is_amount(attributes.get(key))}


def is_amount(value: object) -> TypeGuard[int | float]:
    """Return whether an attribute is a number that can count something: finite, and not negative."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def empty_share(calls: Sequence[tuple[float, float, float]]) -> float:
    """Return the share of the time of some calls that they spend on empty places of their batches.

    If calls with more samples take longer, the time that depends on the samples is none of empty places.

    Args:
        calls: the duration, ``samples`` and ``batch_size`` of each.

    >>> empty_share([(100, 4, 8), (100, 4, 8)]), empty_share([(100, 8, 8), (50, 4, 8)])
    (0.5, 0.0)
    """
    times, samples, rooms = zip(*calls, strict=True)
    fixed = max(times)
    if len({*samples}) > 1 and len({*rooms}) == 1:
        slope, intercept = linear_regression(samples, times)
        fixed = min(max(intercept, 0.0), fmean(times)) if slope > 0 else fixed
    empty = sum(min(took, fixed) * max(1 - of / room, 0.0) for took, of, room in calls if room)
    return empty / sum(times) if sum(times) else 0.0
