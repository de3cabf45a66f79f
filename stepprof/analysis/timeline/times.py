"""Convert the microseconds of a trace to nanoseconds, exactly.

A float holds relative microseconds with three decimals. Absolute ones of this century have an error
of a quarter of a microsecond, and are parsed from their text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FLOAT_EXACT_US = float(2**43)
"""Below this many microseconds (101 days) the spacing of floats is under a nanosecond."""
LARGEST_NS = 2**62
_DECIMAL = re.compile(r"\s*(-?)(\d{1,19})(?:\.(\d{1,40}))?(?:[eE]([+-]?\d{1,3}))?\s*")


def nanoseconds(microseconds: Sequence[float | str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return whole nanoseconds of each time, and which times are usable.

    A time that is no number, or beyond 146 years, is not usable (and is 0).

    >>> nanoseconds([4447104522337.108, "1795304130234711.483", "x"])[0].tolist()
    [4447104522337108, 1795304130234711483, 0]
    """
    texts = bool(microseconds) and isinstance(microseconds[0], str)
    if not texts:
        try:
            values = np.array(microseconds, np.float64)
            texts = bool((np.abs(values) >= FLOAT_EXACT_US).any())
        except ValueError:
            texts = True
    if texts:
        exact = [
            nanoseconds_of_text(value) if isinstance(value, str) else _of_float(value)
            for value in microseconds
        ]
        usable = np.array([value is not None for value in exact], dtype=np.bool_)
        return np.array([value or 0 for value in exact], dtype=np.int64), usable
    whole = np.floor(values)
    fraction = np.rint((values - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64), np.ones(len(values), np.bool_)


def nanoseconds_of_text(text: str) -> int | None:
    """Return whole nanoseconds of microseconds written as a decimal number; None if it is no
    number, or too large.

    >>> nanoseconds_of_text("1795304130234711.4835"), nanoseconds_of_text("-0.001"), nanoseconds_of_text("1e999")
    (1795304130234711484, -1, None)
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    if exponent is not None:
        return _of_float(float(text))
    value = int(whole) * 1000
    if fraction:
        digits = fraction[:4].ljust(4, "0")
        value += (int(digits) + 5) // 10
    if value >= LARGEST_NS:
        return None
    return -value if sign else value


def _of_float(value: float) -> int | None:
    if not abs(value) < LARGEST_NS / 1000:
        return None
    whole = math.floor(value)
    return whole * 1000 + round((value - whole) * 1000)
