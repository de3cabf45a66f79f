"""Encode the parts of protocol buffers that Perfetto traces need: single fields as bytes, and
columns of varints as matrices.

Only this module knows that a varint may be longer than necessary (its last groups are zero), and
every reader accepts that. So all values of a column have the width of the largest one. Many packets
are one matrix, and writing a million of them takes a few numpy operations.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
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
