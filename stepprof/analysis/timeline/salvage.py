"""Recover the intact events of a damaged text: a truncated file, a flipped bit, a name that Kineto
did not escape.

The text is divided where one event seems to end and the next to begin, and each part is decoded by
itself. If an apparent border is inside an event (a list of tables in its arguments), the parts are
joined again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from stepprof.formats.kineto_text import EVENT, repaired_names

Event = TypeVar("Event")

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_NOT_FINITE = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|-?\b(?:inf(?:inity)?|nan)\b', re.IGNORECASE)
"""Strings, which are left alone, and the numbers that JSON has no text for."""
_BLANKS = re.compile(rb"\s+")
_CUTS = 8
"""The most borders that are tried before more text is read."""
_JOINED = 32
"""The most parts of one event."""


Decode = Callable[[bytes], list[Event]]
Loosely = Callable[[bytes], "Event | None"]


@dataclass(slots=True)
class Salvaged(Generic[Event]):
    """The result."""

    events: list[Event] = field(default_factory=list)
    damaged: int = 0
    """Events that could not be recovered."""
    repaired: int = 0
    """Events that were changed so that they could be read."""
    last_damaged: bool = False
    """Whether the last one is among those."""
    rest: bytes = b""
    """The undecodable end, if more text may follow: perhaps the beginning of an event."""


def borders(text: bytes) -> Iterator[int]:
    """Yield the offsets of closing braces after which another event seems to begin, the last
    first.
    """
    end, found = len(text), 0
    while found < _CUTS:
        end = text.rfind(b"}", 0, end)
        if end < 0:
            return
        if BORDER.match(text, end):
            found += 1
            yield end


def salvage(
    text: bytes, decode: Decode[Event], loosely: Loosely[Event], *, more: bool = False
) -> Salvaged[Event]:
    """Decode what is valid among events separated by commas.

    Args:
        text: the events, without the brackets around them.
        decode: decodes a whole array; raises one of DECODE_ERRORS.
        loosely: decodes one event with fields of unusual types; returns None if it is no event.
        more: the text may end within an event; then the undecodable end is returned.
    """
    sound, escaped = repaired_names(text if more else text.rstrip().removesuffix(b","))
    try:
        return Salvaged(decode(b"[%b]" % sound), repaired=escaped)
    except DECODE_ERRORS:
        parts = _parts(sound)
    found: Salvaged[Event] = Salvaged(repaired=escaped)
    failed: list[bytes] = []
    for part in parts:
        if _BLANKS.sub(b"", part) == b"{}":  # the profilers of TensorFlow and JAX end their lists so
            continue
        event = _one(part, decode, found, loosely)
        if event is None:
            failed.append(part)
            continue
        left = _join(failed, found, decode, loosely)
        found.damaged += _count(left)
        failed.clear()
        found.events.append(event)
    left = _join(failed, found, decode, loosely)
    if more:
        found.rest = b",".join(left[-_JOINED:])
        del left[-_JOINED:]
    found.damaged += _count(left)
    found.last_damaged = bool(left)
    return found


def _join(
    failed: Sequence[bytes], found: Salvaged[Event], decode: Decode[Event], loosely: Loosely[Event]
) -> list[bytes]:
    """Join consecutive parts that failed, which may be pieces of events. Return the rest at the
    end.
    """
    left: list[bytes] = []
    at = 0
    while at < len(failed):
        for count in range(2, min(len(failed) - at, _JOINED) + 1):
            event = _one(b",".join(failed[at : at + count]), decode, found, loosely)
            if event is not None:
                found.events.append(event)
                found.damaged += _count(left)
                left.clear()
                at += count
                break
        else:
            left.append(failed[at])
            at += 1
    return left


def _count(pieces: Sequence[bytes]) -> int:
    """Return the number of events in these pieces: each event has its phase in one of them."""
    return max(1, sum(EVENT in _BLANKS.sub(b"", piece) for piece in pieces)) if pieces else 0


def _parts(text: bytes) -> list[bytes]:
    parts, at = [], 0
    for border in BORDER.finditer(text):
        parts.append(text[at : border.start() + 1])
        at = border.end()
    parts.append(text[at:])
    return parts


def _one(text: bytes, decode: Decode[Event], found: Salvaged[Event], loosely: Loosely[Event]) -> Event | None:
    try:
        events = decode(b"[%b]" % text)
    except DECODE_ERRORS:
        pass
    else:
        return events[0] if len(events) == 1 else None
    # Kineto writes `"blocks per SM": inf` where it does not know the device
    event = loosely(_NOT_FINITE.sub(lambda found: found[1] or b"null", _CONTROL.sub(b" ", text)))
    found.repaired += event is not None
    return event
