"""Find the Unix time that the times of a file are relative to."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["anchor_of"]

ABSOLUTE_NS = (1_262_304_000 * 10**9, 4_102_444_800 * 10**9)
"""2010 to 2100. Times of a file without a base in this range are Unix times, as torch wrote them
before 2.3 and torch_npu does.
"""


def anchor_of(header: Mapping[str, object], earliest_ns: int | None) -> int | None:
    """Return the Unix time [ns] that the times of a file are relative to; None if it is not known.

    Args:
        header: what the file states about itself.
        earliest_ns: the earliest of its times, None if it has none.

    >>> anchor_of({"baseTimeNanoseconds": 1790857026000000000}, 5), anchor_of({}, 1795304130 * 10**9), anchor_of({}, 5)
    (1790857026000000000, 0, None)
    """
    base = header.get("baseTimeNanoseconds")
    if isinstance(base, int | float) and not isinstance(base, bool) and 0 < base < ABSOLUTE_NS[1]:
        return int(base)
    if earliest_ns is not None and ABSOLUTE_NS[0] < earliest_ns < ABSOLUTE_NS[1]:
        return 0
    return None
