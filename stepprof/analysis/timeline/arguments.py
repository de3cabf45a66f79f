"""Encode the arguments that people look at as debug annotations of Perfetto.

These are shapes, collectives, grids, bytes and the user's attributes of a region. The numbers by
which a profiler finds its own events are left out.

A trace repeats itself: the same few shapes at the same few operators. Without the profiler's
numbers, its arguments are a few thousand strings. They are kept once while the file is read
(`Shortened`), and encoded once when it is written (`Arguments`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Args
from stepprof.analysis.timeline.protobuf import bytes_field, double_field, varint, varint_field

PROFILER = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "python_function"})
"""Categories with arguments of the profiler only. These are known, including their order."""

_BOOKKEEPING = (
    "cbid", "correlation", "Correlation id", "Ev Idx", "External id", "Fwd thread id", "Python id", "Python module id", "Python parent id", "Record function id", "Sequence number",
)  # fmt: skip
_DROP = frozenset(_BOOKKEEPING)
_PAIRS = re.compile(rb'"(?:%s)"\s*:\s*(?:-?\d+|"[^"\\]*"|null)\s*,?\s*' % "|".join(_BOOKKEEPING).encode())
_DIGITS = b"0123456789-"
_SHAPES, _INDEX = (
    b'"Concrete Inputs"',
    b'"Ev Idx":',
)  # the values before and after this one only distinguish events
_LAST = b"0123456789 }\r\n\t"
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCH, _OUTER = b'"correlation":', b'"External id":'
_NUMBER = b"0123456789 "
_INT64 = 2**63
_LARGEST = 1 << 16  # bytes of one value; a viewer is not used to read more


class Shortened:
    """Selects the arguments to keep while a file is read; equal ones are one object.
    `stepprof.analysis.timeline.load.load` takes it.
    """

    def __init__(self) -> None:
        self._shapes: dict[bytes, bytes] = {}
        self._launches: dict[tuple[bytes, bytes, bytes], bytes] = {}
        self._bare: set[bytes] = set()

    def __call__(self, events: Iterable[Event], *names: object) -> list[Args]:
        """Return the arguments of each event without those in `PROFILER`; None if none remain."""
        shapes, bare, profiler = self._shapes, self._bare, PROFILER
        kept: list[Args] = []
        for event in events:
            raw = bytes(event.args)
            if event.cat not in profiler:
                kept.append(self._launched(raw) if event.cat in _DEVICE else raw or None)
                continue
            _, found, rest = raw.partition(_SHAPES)
            if found:
                key = rest.rstrip(_LAST)
                known = shapes.get(key)
                if known is None:
                    if not key.endswith(_INDEX):
                        known = raw
                    else:
                        inputs = key[: -len(_INDEX)].rstrip(b", \r\n\t")
                        known = shapes[key] = b"{%b%b}" % (_SHAPES, inputs)
                kept.append(known)
            elif (text := raw.translate(None, _DIGITS)) in bare:
                kept.append(None)
            elif _PAIRS.sub(b"", raw).strip(b" {},\r\n\t"):
                kept.append(raw)
            else:
                bare.add(text)
                kept.append(None)
        return kept

    def _launched(self, raw: bytes) -> bytes | None:
        """Return the arguments of a device's event.

        Events that differ in their launch only have those of the first one.
        """
        before, found, after = raw.partition(_LAUNCH)
        if not found:
            return raw or None
        first, _, rest = before.partition(_OUTER)
        key = (first, rest.lstrip(_NUMBER), after.lstrip(_NUMBER))
        known = self._launches.get(key)
        if known is None:
            known = self._launches[key] = raw
        return known


class Arguments:
    """Encodes the arguments of one source. Names and texts are interned; `interned()` returns those
    that are new since its last call.
    """

    def __init__(self) -> None:
        self.table: list[bytes] = [b""]
        """The debug annotations of each code."""
        self._codes: dict[bytes, int] = {}
        self._names: dict[str, int] = {}
        self._texts: dict[str, int] = {}
        self._told = (0, 0)

    def codes(self, raws: list[Args]) -> npt.NDArray[np.int64]:
        """Return the indices of debug annotations for raw JSON objects. Equal objects are encoded
        once.
        """
        codes = {raw: self._code(raw) for raw in dict.fromkeys(raws)}
        return np.array([codes[raw] for raw in raws], np.int64)

    def _code(self, raw: bytes | None) -> int:
        if raw is None:
            return 0
        rest = _PAIRS.sub(b"", raw)
        if not rest.strip(b" {},\r\n\t"):
            return 0
        known = self._codes.get(rest)
        if known is None:
            known = self._codes[rest] = len(self.table)
            self.table.append(self._encode(raw))
        return known

    def interned(self) -> bytes:
        """Return the fields of an InternedData for every name and text that is new."""
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
