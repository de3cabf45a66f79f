"""Mark windows and regions as mstx ranges, in stepprof's domain.

A range has a number, by which any thread may end it, in any order. Some versions of torch_npu have
no domains. torch_npu's guard prints each failure to stdout, at every range; so the function inside
the guard is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stepprof.interrupts import ours
from stepprof.log import logger

DOMAIN = "stepprof"
MESSAGE_BYTES = 156
"""CANN silently refuses longer names, and empty ones (its documentation of mstxRangeStartA)."""


class MstxRanges:
    """The ranges of this process.

    Args:
        mstx: torch_npu's; None where it has none.
    """

    def __init__(self, mstx: Any) -> None:
        self.there = mstx is not None
        if mstx is not None:
            self._begin, self._end = inspect.unwrap(mstx.range_start), inspect.unwrap(mstx.range_end)
            self._takes_domain = "domain" in inspect.signature(self._begin).parameters

    def begin(self, name: str) -> int | None:
        """Begin a range; return None if none was begun."""
        message = _message(name)
        found = self._begin(message, None, DOMAIN) if self._takes_domain else self._begin(message)
        return found or None

    def end(self, number: int) -> None:
        """End the range."""
        if self._takes_domain:
            self._end(number, DOMAIN)
        else:
            self._end(number)


class Range:
    """One range, which ends at most once."""

    __slots__ = ("_name", "_number", "_ranges")

    def __init__(self, ranges: MstxRanges, name: str) -> None:
        self._ranges = ranges
        self._name = name
        self._number: int | None = None

    def __enter__(self) -> Range:
        self._number = self._ranges.begin(self._name)
        return self

    def __exit__(self, *_: object) -> None:
        number, self._number = self._number, None
        if number is not None:
            self._ranges.end(number)


def without_it(act: Callable[[], object]) -> None:
    """Begin or end a range; the window is recorded even if that fails."""
    try:
        act()
    except ours(Exception) as error:  # mstx may raise anything
        logger.warning("npu.range_failed", reason=f"{type(error).__name__}: {error}")


def _message(name: str) -> str:
    if name.isascii() and 0 < len(name) <= MESSAGE_BYTES and "\0" not in name:
        return name
    text = name.replace("\0", "\ufffd").encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")
    return text or "(no name)"
