"""Read complete events from the lines that Kineto writes, in columns, without an object for each
event.

Kineto writes each key of an event on a line of its own, and the arguments last. The lines before
the times are equal for all events of one kind, and are parsed once. The arguments are not parsed:
this is for files with a checksum, and for readers that need the arguments of few events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Indices, Times
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.host.plain_json import whole_pairs

_BEGIN, _END = b'\n  {\n    "ph": "X",\n', b"\n    }\n  }"
_INDENT = b"\n      "
"""Before each line of arguments. So no event is taken for arguments of the one before it."""
_TS, _DUR, _ARGS = b',\n    "ts": ', b',\n    "dur": ', b'\n    ,\n    "args": {' + _INDENT
_START, _DURATION, _LAST = 6, 7, 8
"""Lines of an event: that of its start, that of its duration, and the one after it."""
AFTER = b"\n]" + b" " * len(_ARGS)
"""Text after the last event, so long that no comparison with a constant exceeds the text."""
_LOOKED_AT = 1 << 16
_WIDEST = 18
"""The most characters of a time. Its nanoseconds fit into an int64."""
_POWERS = np.array([10**at for at in range(_WIDEST - 2, 2, -1)] + [0, 100, 10, 1], np.int64)
"""The nanoseconds of each character of a time. The point has none."""
_MOST_KINDS, _LONGEST = 1 << 14, 1 << 12
"""The most kinds of a file, and the most bytes of one."""

_event = msgspec.json.Decoder(Event)


class EventLines(Sequence[Event]):
    """Complete events, in the order of the file. Subscribing it returns an event without times.

    Attributes:
        kinds: an event of each kind in the file so far, without times and arguments.
        kind: of each event, into `kinds`.
        start: nanoseconds by the clock of the file.
        duration: nanoseconds.
    """

    def __init__(
        self, kinds: Sequence[Event], kind: Indices, times: tuple[Times, Times], text: bytes, args: tuple[Times, Times]
    ) -> None:  # fmt: skip
        self.kinds, self.kind, (self.start, self.duration) = kinds, kind, times
        self._text, self._args = text, args

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, at: Any) -> Any:
        begin, end = self._args
        args = Raw(self._text[begin[at] : end[at]])
        return msgspec.structs.replace(self.kinds[self.kind[at]], args=args)


class _Kinds(dict[bytes, int]):
    """Numbers for the heads of events, and an event for each."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def __missing__(self, head: bytes) -> int:
        if len(self) == _MOST_KINDS or len(head) > _LONGEST:
            raise ValueError("too many or too long")
        event = _event.decode(head + b"0}")
        if not head.endswith(_TS) or event.ph != "X" or event.ts != 0:
            raise ValueError("no head of a complete event")
        self.events.append(event)
        number = self[head] = len(self)
        return number


@dataclass(slots=True)
class LineReader:
    """Reads the arrays of one file.

    Args:
        decode: decodes an array of other events; raises one of DECODE_ERRORS.
    """

    decode: Callable[[bytes], list[Event]]
    _kinds: _Kinds = field(default_factory=_Kinds)

    def __call__(self, text: bytes) -> tuple[EventLines, list[Event]] | None:
        """Return the complete events of an array, and the others; None if not all complete events
        are as Kineto writes them.

        Args:
            text: an array that ends with `AFTER`.
        """
        if text.find(_BEGIN, 0, _LOOKED_AT) < 0 or whole_pairs(text) is not text:
            return None
        characters = np.frombuffer(text, np.uint8)
        line = np.flatnonzero(characters == ord("\n"))
        first = np.flatnonzero(np.diff(line) == len(b"\n  {"))
        if not len(first) or first[-1] != len(line) - 2:  # the last of these lines is "  }"
            return None
        last = np.append(first[1:-1] - 1, first[-1])
        complete = characters[line[first[:-1]] + _BEGIN.index(b"X")] == ord("X")
        first, last = first[:-1][complete], last[complete]
        if not len(first) or (last - first < _LAST + 4).any():
            return None
        begin, end = line[first], line[last + 1]
        start, duration, args = (line[first + at] for at in (_START, _DURATION, _LAST))
        if not (
            _has(text, begin[1:] - 1, b",")
            and _has(text, duration - 1, _DUR)
            and _has(text, args, _ARGS)
            and _has(text, line[_ranges(first + _LAST + 3, last - 1)], _INDENT)
            and _has(text, line[last[:-1] - 1], _END + b",\n")
            and _has(text, line[last[-1:] - 1], _END + (b",\n" if end[-1] < line[-1] else b"\n]"))
        ):
            return None
        gaps = np.stack((np.append(1, end), np.append(begin, line[-1])), 1)
        try:
            times = (
                _nanoseconds(text, start - 1 + len(_TS), duration - 1),
                _nanoseconds(text, duration - 1 + len(_DUR), args),
            )
            heads = zip(begin.tolist(), (start - 1 + len(_TS)).tolist(), strict=True)
            kind = np.array([self._kinds[text[low:high]] for low, high in heads], np.int32)
            rest = b"".join([text[low:high] for low, high in gaps[gaps[:, 0] < gaps[:, 1]].tolist()]).strip()
            others = self.decode(b"[%b]" % rest.removesuffix(b","))
        except (ValueError, *DECODE_ERRORS):
            return None
        if any(event.ph == "X" for event in others):
            return None
        held = args + _ARGS.index(b"{"), line[last]
        return EventLines(self._kinds.events, kind, times, text, held), others


def _ranges(begin: Times, end: Times) -> Times:
    """Return the numbers of all ranges, one after the other."""
    count = end - begin
    before = np.cumsum(count) - count
    every: Times = np.repeat(begin - before, count) + np.arange(count.sum())
    return every


def _windows(text: bytes, offsets: Times, width: int) -> npt.NDArray[np.void]:
    """Return the bytes of a text at each offset."""
    every: npt.NDArray[np.void] = np.ndarray((len(text) - width + 1,), f"V{width}", text, strides=(1,))
    return every[offsets]


def _has(text: bytes, offsets: Times, constant: bytes) -> bool:
    """Return whether a text has a constant at each offset."""
    return bool(_windows(text, offsets, len(constant)).tobytes() == constant * len(offsets))


def _nanoseconds(text: bytes, begin: Times, end: Times) -> Times:
    """Return the nanoseconds of microseconds with three decimals; raise ValueError if any are
    written otherwise.
    """
    width = end - begin
    widest = int(width.max())
    if widest > _WIDEST or width.min() < len(b"0.000"):
        raise ValueError("too wide or too short")
    digits = _windows(text, end - widest, widest).view(np.uint8).reshape(-1, widest) - np.uint8(ord("0"))
    if width.min() < widest:
        digits[np.arange(widest) < (widest - width)[:, None]] = 0
    if (digits[:, -4] != ord(".") - ord("0") + 256).any():
        raise ValueError("no point before three decimals")
    digits[:, -4] = 0
    if digits.max() > 9:
        raise ValueError("no digit")
    whole: Times = digits @ _POWERS[-widest:]
    return whole
