"""The arguments that people look at, as debug annotations of Perfetto: shapes, collectives, grids, bytes, whatever a user gave a region; not the numbers by which a profiler finds its own events.

A trace repeats itself: the same few shapes at the same few operators. Without those numbers its arguments are a few thousand texts, so that they are kept once while the file is read (`Shortened`), and
encoded once when it is written (`Arguments`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.timeline.event import Event
from stepprof.timeline.protobuf import bytes_field, double_field, varint, varint_field

__all__ = ["PROFILER", "Arguments", "Shortened"]

PROFILER = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "python_function"})
"""Categories whose arguments are the profiler's alone: which there are, and in which order, is known."""

_BOOKKEEPING = (
    "cbid", "correlation", "Correlation id", "Ev Idx", "External id", "Fwd thread id", "Python id", "Python module id", "Python parent id", "Record function id", "Sequence number",
)  # fmt: skip
_DROP = frozenset(_BOOKKEEPING)
_PAIRS = re.compile(rb'"(?:%s)"\s*:\s*(?:-?\d+|"[^"\\]*"|null)\s*,?\s*' % "|".join(_BOOKKEEPING).encode())
_DIGITS = b"0123456789-"
_SHAPES, _INDEX = b'"Concrete Inputs"', b'"Ev Idx"'  # what stands before, and after, only tells events apart
_INT64 = 2**63
_LARGEST = 1 << 16  # bytes of one value: nobody reads more in a viewer


class Shortened:
    """What of the arguments of events is kept while a file is read, as `stepprof.timeline.load.load` takes it: equal ones are one object."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, bytes] = {}
        self._bare: set[bytes] = set()

    def __call__(self, events: Iterable[Event]) -> list[bytes | None]:
        """The arguments of each event, without what `PROFILER` writes for itself; None: nothing remains."""
        shapes, bare, profiler = self._shapes, self._bare, PROFILER
        kept: list[bytes | None] = []
        for event in events:
            raw = bytes(event.args)
            if event.cat not in profiler:
                kept.append(raw or None)
            elif (at := raw.find(_SHAPES)) > 0:
                key = raw[at : raw.rfind(_INDEX, at)]
                known = shapes.get(key)
                if known is None:
                    known = shapes[key] = b"{%b}" % key.rstrip(b", \r\n\t")
                kept.append(known)
            elif (text := raw.translate(None, _DIGITS)) in bare:
                kept.append(None)
            elif _PAIRS.sub(b"", raw).strip(b" {},\r\n\t"):
                kept.append(raw)
            else:
                bare.add(text)
                kept.append(None)
        return kept


class Arguments:
    """Encodes the arguments of one source; names and texts are interned, and `interned()` says which are new since it was last asked."""

    def __init__(self) -> None:
        self.table: list[bytes] = [b""]
        """The debug annotations behind each code."""
        self._codes: dict[bytes, int] = {}
        self._names: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._told = (0, 0)

    def codes(self, raws: list[bytes | None]) -> npt.NDArray[np.int64]:
        """The numbers of debug annotations in the table for raw JSON objects; what is one object is encoded once."""
        places = np.fromiter(map(id, raws), np.uint64, len(raws))
        _, first, which = np.unique(places, return_index=True, return_inverse=True)
        code = self._code
        codes = [0 if (raw := raws[number]) is None else code(raw) for number in first.tolist()]
        return np.array(codes, np.int64)[which.reshape(-1)]

    def _code(self, raw: bytes) -> int:
        rest = _PAIRS.sub(b"", raw)
        if not rest.strip(b" {},\r\n\t"):
            return 0
        known = self._codes.get(rest)
        if known is None:
            known = self._codes[rest] = len(self.table)
            self.table.append(self._encode(raw))
        return known

    def interned(self) -> bytes:
        """The fields of an InternedData for every name and text that is new."""
        names, texts = self._told
        self._told = (len(self._names), len(self._texts))
        return b"".join(
            [
                bytes_field(3, varint_field(1, number) + bytes_field(2, name))
                for name, number in list(self._names.items())[names:]
            ]
            + [
                bytes_field(29, varint_field(1, number) + bytes_field(2, text))
                for text, number in list(self._texts.items())[texts:]
            ]
        )

    def _encode(self, raw: bytes) -> bytes:
        try:
            content = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            content = {"arguments": raw.decode("utf-8", "replace")}
        if not isinstance(content, dict):
            content = {"arguments": content}
        return b"".join(self.field(name, value) for name, value in content.items() if name not in _DROP)

    def field(self, name: str, value: object) -> bytes:
        """One debug annotation, as a field of a TrackEvent."""
        number = self._names.setdefault(name, len(self._names) + 1)
        return bytes_field(4, varint_field(1, number) + self._value(value))

    def _value(self, value: object) -> bytes:
        if isinstance(value, bool):
            return varint_field(2, value)
        if isinstance(value, int) and -_INT64 <= value < _INT64:
            return varint_field(4, value)
        if isinstance(value, float):
            return double_field(5, value)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if len(text) > _LARGEST:
            text = text[:_LARGEST] + "…"
        return varint(17 << 3) + varint(self._texts.setdefault(text, len(self._texts) + 1))
