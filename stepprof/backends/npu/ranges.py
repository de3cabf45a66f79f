"""Windows and regions as ranges of mstx's, in a domain of stepprof's own.

What only this module knows: what mstx takes. A range has a number, by which any thread may end it, in any order; that of another torch_npu has no domain. torch_npu's guard prints whatever fails to stdout, at each
range anew: so what is inside of it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stepprof.log import logger

__all__ = ["DOMAIN", "Range", "Ranges", "without_it"]

DOMAIN = "stepprof"
MESSAGE_BYTES = 156
"""A longer name, and none at all, CANN refuses without a word (its documentation of mstxRangeStartA)."""


class Ranges:
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
        """Begin a range; None where nothing was begun."""
        message = _message(name)
        found = self._begin(message, None, DOMAIN) if self._takes_domain else self._begin(message)
        return found or None

    def end(self, number: int) -> None:
        """End it."""
        if self._takes_domain:
            self._end(number, DOMAIN)
        else:
            self._end(number)


class Range:
    """One range; it ends once, whatever ends it."""

    __slots__ = ("_name", "_number", "_ranges")

    def __init__(self, ranges: Ranges, name: str) -> None:
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
    """Begin or end a range: the window is recorded also where that is not to be had."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever mstx thinks of it
        logger.warning("npu.range_failed", reason=f"{type(error).__name__}: {error}")


def _message(name: str) -> str:
    if name.isascii() and 0 < len(name) <= MESSAGE_BYTES and "\0" not in name:
        return name
    text = name.replace("\0", "\ufffd").encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")
    return text or "(no name)"
