"""Parse the top level of a trace file: its end, the end of its events, and the header."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.host.plain_json import whole_pairs

__all__ = ["ending", "is_nested", "table"]

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_CLOSING = {b"{": b"}", b"[": b"]"}
_ENDINGS = 64
_header = msgspec.json.Decoder(dict[str, Any])


def ending(text: bytes) -> int | None:
    """Return the end of an array of events that cannot be decoded; None if it does not end.

    It is after the first of the last brackets from which on the rest may follow the events.
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
