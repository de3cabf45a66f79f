"""Parse the top level of a trace file: its end, the end of its events, the header, and the Unix time of its times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.host.plain_json import whole_pairs

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSING = {b"{": b"}", b"[": b"]"}
_ENDINGS = 64
_header = msgspec.json.Decoder(dict[str, Any])


def ending(text: bytes) -> int | None:
    """Return the end of an array of events that cannot be decoded; None if it does not end.

    Check the last closing brackets. One counts if the text after it can be the end of a trace
    file. The first that counts ends the array.
    """
    end, found = len(text), None
    for _ in range(_ENDINGS):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            break
        rest = text[end + 1 :]
        try:
            table(b'{"":0' + (rest if rest.strip() else b"}"))
        except DECODE_ERRORS:
            continue
        found = end + 1
    return found


def keys_behind(text: bytes) -> dict[str, object]:
    """Return the keys that follow the events at the end of a file; none if that end is damaged, or if the file is a bare array."""
    end = ending(text)
    if end is None:
        return {}
    try:
        return table(b'{"":0' + text[end:])
    except DECODE_ERRORS:
        return {}


def is_nested(head: bytes) -> bool:
    """Return whether the text ends within a table of the top level, as intact JSON does."""
    closing = bytearray()
    for token in _TOKENS.finditer(head):
        bracket = token[0]
        if bracket in _CLOSING:
            closing += _CLOSING[bracket]
        elif bracket[:1] in b"]}" and closing:
            closing.pop()
    if len(closing) < 2:
        return False
    try:
        table(head + b'"":0' + bytes(reversed(closing)))
    except DECODE_ERRORS:
        return False
    return True


def table(text: bytes) -> dict[str, object]:
    """Decode a top level without its events; raise one of DECODE_ERRORS."""
    content: dict[str, object] = _header.decode(whole_pairs(text))
    content.pop("", None)
    content.pop("traceEvents", None)
    return content


def has_events(text: bytes) -> bool:
    """Return whether an intact top level has a list of events."""
    content: dict[str, object] = _header.decode(whole_pairs(text))
    return isinstance(content.get("traceEvents"), list)


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
