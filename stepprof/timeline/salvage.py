"""What is whole in a stretch of events that is not: a file that breaks off, a bit that flipped, a name that Kineto did not escape.

The text is divided where one event seems to end and the next to begin, and the parts that do not decode are halved until what is left are single events. Where a seeming border
lies within an event (a list of tables among its arguments), the parts are joined again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from stepprof.kinetotext import with_sound_names

__all__ = ["BORDER", "DECODE_ERRORS", "Salvaged", "salvage"]

Event = TypeVar("Event")

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_JOINED = 32
"""So many parts at most make one event."""


class Salvaged(Generic[Event]):
    """What came of it: the events that are whole, how many were given up, and whether the last one is among those."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.damaged = 0
        self.last_damaged = False


def salvage(
    text: bytes, decode: Callable[[bytes], list[Event]], loosely: Callable[[bytes], Event | None]
) -> Salvaged[Event]:
    """Decode what can be of events separated by commas.

    Args:
        text: the events, without the brackets around them.
        decode: decodes a whole array; raises one of DECODE_ERRORS.
        loosely: decodes one event whose fields have unusual types; None where it is none.
    """
    found: Salvaged[Event] = Salvaged()
    sound = with_sound_names(text)
    try:
        found.events = decode(b"[%b]" % sound)
    except DECODE_ERRORS:
        pass
    else:
        return found
    parts = _parts(sound)
    failed: list[bytes] = []

    def give_up(first: bool = True) -> None:
        """Join what failed in a row: it may be pieces of one event."""
        while failed:
            for count in range(2, min(len(failed), _JOINED) + 1):
                event = _one(b",".join(failed[:count]), decode, loosely)
                if event is not None:
                    found.events.append(event)
                    del failed[:count]
                    break
            else:
                found.damaged += 1
                del failed[:1]

    stack = [(0, len(parts))]
    while stack:
        start, end = stack.pop()
        if end - start == 1:
            event = _one(parts[start], decode, loosely)
            if event is None:
                failed.append(parts[start])
            else:
                give_up()
                found.events.append(event)
                found.last_damaged = False
            found.last_damaged = event is None
            continue
        try:
            events = decode(b"[%b]" % b",".join(parts[start:end]))
        except DECODE_ERRORS:
            middle = (start + end) // 2
            stack += [(middle, end), (start, middle)]
            continue
        give_up()
        found.events += events
        found.last_damaged = False
    damaged = found.damaged
    give_up()
    found.last_damaged = found.last_damaged and found.damaged > damaged
    return found


def _parts(text: bytes) -> list[bytes]:
    parts, at = [], 0
    for border in BORDER.finditer(text):
        parts.append(text[at : border.start() + 1])
        at = border.end()
    parts.append(text[at:])
    return parts


def _one(
    text: bytes, decode: Callable[[bytes], list[Event]], loosely: Callable[[bytes], Event | None]
) -> Event | None:
    try:
        events = decode(b"[%b]" % text)
    except DECODE_ERRORS:
        pass
    else:
        return events[0] if len(events) == 1 else None
    clean = _CONTROL.sub(b" ", text.decode("utf-8", "replace").encode())
    return loosely(clean)
