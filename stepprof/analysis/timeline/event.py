"""Decode the events of a Chrome trace in a typed pass that costs little more than finding their
ends, and convert their microseconds to nanoseconds, exactly.

A float holds relative microseconds with three decimals. Absolute ones of this century have an error
of a quarter of a microsecond, and are parsed from their text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct

from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.host.plain_json import whole_pairs

NOTHING = Raw(b"")
_LOOKED_AT = 256
FLOAT_EXACT_US = float(2**43)
"""Below this many microseconds (101 days) the spacing of floats is under a nanosecond."""
LARGEST_NS = 2**62
_DECIMAL = re.compile(r"\s*(-?)(\d{1,19})(?:\.(\d{1,40}))?(?:[eE]([+-]?\d{1,3}))?\s*")


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
    dur: float | str = ""
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
        if value is None and key == "dur":  # null, or written as nan or inf: like none
            continue
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        setattr(event, key, value if isinstance(value, str) else repr(value))
    for key in ("args", "id2"):
        if key in fields:
            setattr(event, key, Raw(msgspec.json.encode(fields[key])))
    return event


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
            texts = not bool((np.abs(values) < FLOAT_EXACT_US).all())  # also for nan
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
