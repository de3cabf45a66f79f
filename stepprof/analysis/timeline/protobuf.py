"""Encode the parts of protocol buffers that Perfetto traces need: single fields as bytes, and
columns of varints as matrices.

Only this module knows that a varint may be longer than necessary (its last groups are zero), and
every reader accepts that. So all values of a column have the width of the largest one. Many packets
are one matrix, and writing a million of them takes a few numpy operations.

It also knows that numpy copies items of any size in one operation. So records of different lengths
need no loop either: a view of the buffer with an item at every byte accepts a row at every start of
a record, at ten nanoseconds each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
_SINGLE = [bytes((value,)) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Encode an integer from 0 to 2**64 - 1. A negative one is taken modulo 2**64, as int64 fields
    require.

    >>> varint(300).hex()
    'ac02'
    """
    if 0 <= value < 0x80:
        return _SINGLE[value]
    value &= 0xFFFF_FFFF_FFFF_FFFF
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def varint_field(number: int, value: int) -> bytes:
    """Return a field of an integer, a bool or an enum."""
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """Return a field of text, bytes or a message. Invalid Unicode in text is replaced, never
    refused.
    """
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def double_field(number: int, value: float) -> bytes:
    """Return a field of a float64."""
    return varint(number << 3 | 1) + struct.pack("<d", value)


def width_of(largest: int) -> int:
    """Return the number of bytes that a varint up to `largest` takes.

    >>> width_of(127), width_of(128), width_of(0)
    (1, 2, 1)
    """
    return max(1, -(-int(largest).bit_length() // 7))


def varints(values: npt.NDArray[np.integer], width: int | None = None) -> Bytes:
    """Encode a column as a matrix with a row for each value, each as wide as the largest value
    needs.

    Args:
        values: not negative.
        width: bytes of each, at least those of the largest value; None: exactly those.

    >>> varints(np.array([1, 300])).tolist()
    [[129, 0], [172, 2]]
    """
    if width is None:
        width = width_of(int(values.max())) if len(values) else 1
    out = np.empty((len(values), width), np.uint8)
    for place in range(width):
        group = (values >> (7 * place)) & 0x7F
        out[:, place] = group if place == width - 1 else group | 0x80
    return out


def columns(count: int, parts: Sequence[bytes | Bytes]) -> Bytes:
    """Concatenate constants and columns to a matrix of `count` rows.

    >>> columns(2, [b"\\x08", varints(np.array([1, 2]))]).tolist()
    [[8, 1], [8, 2]]
    """
    out = np.empty((count, widths(parts)), np.uint8)
    at = 0
    for part in parts:
        width = widths([part])
        out[:, at : at + width] = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        at += width
    return out


def widths(parts: Sequence[bytes | Bytes]) -> int:
    """Return the width of concatenated constants and columns."""
    return sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)


def scatter(buffer: Bytes, at: Positions, rows: Bytes) -> None:
    """Copy each row of a matrix to its place in the buffer; a single row to all places.

    >>> buffer = np.zeros(5, np.uint8)
    >>> scatter(buffer, np.array([3, 0]), np.array([[1, 2], [3, 4]], np.uint8))
    >>> buffer.tolist()
    [3, 4, 0, 1, 2]
    """
    width = rows.shape[1]
    if not len(rows) or not width:
        return
    if int(at.min()) < 0 or int(at.max()) + width > len(buffer):
        raise IndexError("a row does not fit into the buffer")
    items = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer.data, strides=(1,))
    items[at] = np.ascontiguousarray(rows).view(f"V{width}").reshape(-1)


class Extras:
    """The variable part of records of equal length: texts from a table, and rows of fixed width,
    any number for each record.

    Args:
        count: records.
    """

    def __init__(self, count: int) -> None:
        self.lengths = np.zeros(count, np.int64)
        self._texts: list[tuple[Positions, Sequence[bytes]]] = []
        self._rows: list[tuple[Positions, Bytes]] = []

    def add_texts(self, codes: Positions, table: Sequence[bytes]) -> None:
        """For each record the number of a text in the table."""
        sizes = np.fromiter(map(len, table), np.int64, len(table))
        self.lengths += sizes[codes]
        self._texts.append((codes, table))

    def add_rows(self, record: Positions, rows: Bytes) -> None:
        """For each row the number of its record, in ascending order."""
        np.add.at(self.lengths, record, rows.shape[1])
        self._rows.append((record, rows))

    def write(self, buffer: Bytes, at: Positions) -> None:
        """Copy the variable parts to their places."""
        at = at.copy()
        for codes, table in self._texts:
            order = np.argsort(codes, kind="stable")
            used, first = np.unique(codes[order], return_index=True)
            for code, members in zip(used.tolist(), np.split(order, first[1:]), strict=True):
                text = table[code]
                if text:
                    scatter(buffer, at[members], np.frombuffer(text, np.uint8).reshape(1, -1))
                    at[members] += len(text)
        for record, rows in self._rows:
            first = np.searchsorted(record, record, side="left")
            scatter(buffer, at[record] + (np.arange(len(record)) - first) * rows.shape[1], rows)
            np.add.at(at, record, rows.shape[1])
