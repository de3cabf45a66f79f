"""Decode the events of a Chrome trace in a typed pass that costs little more than finding their
ends.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct

from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.analysis.timeline.times import FLOAT_EXACT_US
from stepprof.host.plain_json import whole_pairs

NOTHING = Raw(b"")
_LOOKED_AT = 256


class Event(Struct, gc=False):
    """One event, with the fields that readers and writers use.

    ``ts`` and ``dur`` are microseconds: a number if a float is exact, otherwise its text (empty:
    missing).
    """

    ph: str
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float | str = ""
    dur: float | str = 0.0
    id: int | str | None = None
    args: Raw = NOTHING
    id2: Raw = NOTHING
    scope: str = ""


class _ExactEvent(Event, gc=False):
    """An event whose start is kept as the text of the file."""

    ts: Raw = NOTHING  # type: ignore[assignment]


_events = msgspec.json.Decoder(list[Event])
_exact_events = msgspec.json.Decoder(list[_ExactEvent])


class EventDecoder:
    """Decodes the arrays of one file. If a float cannot hold a time exactly, all times from that
    array on are taken as text.
    """

    def __init__(self) -> None:
        self._exact: bool | None = None
        self.halves = False
        """Whether halves of surrogate pairs were replaced, also in arguments, which are not decoded
        here.
        """

    def __call__(self, text: bytes) -> list[Event]:
        """Decode an array. Raises one of DECODE_ERRORS."""
        sound = whole_pairs(text)
        self.halves |= sound is not text and sound != text
        return self._decode(sound)

    def _decode(self, text: bytes) -> list[Event]:
        if not self._exact:
            events: list[Event] = _events.decode(text)
            if self._exact is None and events:  # a file has either absolute or relative times throughout
                self._exact = any(
                    type(event.ts) is float and not -FLOAT_EXACT_US < event.ts < FLOAT_EXACT_US
                    for event in [*events[:_LOOKED_AT], *events[-_LOOKED_AT:]]
                )
            if not self._exact:
                return events
        exact: list[Any] = _exact_events.decode(text)
        for event in exact:
            event.ts = bytes(event.ts).decode("utf-8", "replace").strip('"')
        return exact


def loosely(text: bytes) -> Event | None:
    """Return an event with fields of unexpected types, without fields that cannot be a name, a
    number or an id.
    """
    try:
        fields: Any = msgspec.json.decode(whole_pairs(text))
    except DECODE_ERRORS:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("ph"), str):
        return None
    event = Event(fields["ph"])
    for key in ("name", "cat", "scope"):
        if isinstance(fields.get(key), str | int | float):
            setattr(event, key, str(fields[key]))
    for key in ("pid", "tid", "id"):
        value = fields.get(key)
        if isinstance(value, str | int | float):
            setattr(event, key, value if isinstance(value, str | int) else str(value))
    for key in fields.keys() & {"ts", "dur"}:
        value = fields[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        setattr(event, key, value if isinstance(value, str) else repr(value))
    for key in ("args", "id2"):
        if key in fields:
            setattr(event, key, Raw(msgspec.json.encode(fields[key])))
    return event
