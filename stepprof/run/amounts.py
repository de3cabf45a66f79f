"""Read the attributes of regions and windows that state how much work was done.

`tokens`, `samples` and `batch_size` have a fixed meaning (docs/concepts.md); all other attributes are
the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
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
