"""Read a pickle of plain values without running it.

A pickle is a program, and an artifact may come from anywhere. All instructions are checked before
the first one is followed: only those for lists, mappings, strings, numbers, booleans, None and
pairs of small numbers are allowed, which is all that torch's snapshots need. So nothing is imported
or called. The check is a regular expression, which splits the instructions as the standard library
does. The standard library then makes the values: 200 MB take seconds, against a minute for a loop
in Python.

Memory and time are limited too. The standard library allocates any memo place that a file names,
before it looks at anything else. One byte of the file makes a mapping, which takes seventy. Hashing
a tuple of tuples of tuples crashes the process. Any number of large integers as keys may have the
same hash.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
import struct
from typing import Any, NoReturn

MAX_BYTES = 256 << 20
MAX_INSTRUCTIONS = 80_000_000
MAX_CONTAINERS = 12_000_000
"""Maximum number of lists, mappings and pairs; this many empty ones take 900 MB."""

_AT_ONCE = 4096
_NUMBER = rb"K.|M..|J.{4}|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{8}\x00)|G.{8}"
_SHORT_TEXT = rb"\x8c(?:%s)" % b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(256))
_INSTRUCTIONS = re.compile(
    # memo: known place; new one (up to 2^24 if it is numbered); pairs; numbers; containers and marks; texts; the head
    rb"(?:j.{4}|h.|\x94|(?:K.|M..)(?:K.|M..)\x86|%s|[]}()Neuas\x88\x89]|%s|q.|r...\x00|\x80[\x02-\x05]|\x95.{8}){1,%d}"
    % (_NUMBER, _SHORT_TEXT, _AT_ONCE),
    re.DOTALL,
)
_LONG_TEXTS = {ord("X"): struct.Struct("<I"), ord("\x8d"): struct.Struct("<Q")}
_STOP = ord(".")
_CALLING = {
    ord("c"): "GLOBAL",
    ord("\x93"): "STACK_GLOBAL",
    ord("R"): "REDUCE",
    ord("b"): "BUILD",
    ord("i"): "INST",
    ord("o"): "OBJ",
    ord("\x81"): "NEWOBJ",
    ord("\x92"): "NEWOBJ_EX",
    ord("P"): "PERSID",
    ord("Q"): "BINPERSID",
    ord("\x82"): "EXT1",
    ord("\x83"): "EXT2",
    ord("\x84"): "EXT4",
}
"""The instructions that import or call something, with their names in the standard library."""


class PickleRefused(ValueError):
    """The file is not a pickle of plain values, is damaged, or exceeds a limit."""


def read_pickle(data: bytes) -> Any:
    """Return the value of the pickle. Raise PickleRefused.

    >>> read_pickle(pickle.dumps({"segments": [], "share": 0.5}))
    {'segments': [], 'share': 0.5}
    >>> read_pickle(pickle.dumps(print, protocol=4))
    Traceback (most recent call last):
      ...
    stepprof.formats.safe_pickle.PickleRefused: instruction STACK_GLOBAL at byte 30: it would run code
    """
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    _look_at(data)
    # bytes inside a number or string are counted as well, so this is an upper bound
    if sum(map(data.count, (b"]", b"}", b"\x86"))) > MAX_CONTAINERS:
        raise PickleRefused(f"more than {MAX_CONTAINERS} lists and mappings")
    collects = gc.isenabled()
    gc.disable()  # it would check the millions of values again and again, which takes longer than making them
    try:
        return _Reader(io.BytesIO(data)).load()
    except PickleRefused:
        raise
    except Exception as error:  # it raises various exceptions for damaged data
        raise PickleRefused(f"damaged: {type(error).__name__}: {error}") from error
    finally:
        if collects:
            gc.enable()


def _look_at(data: bytes) -> None:
    """Check all instructions up to the last. Raise PickleRefused."""
    at = passed = 0
    while passed <= MAX_INSTRUCTIONS:
        found = _INSTRUCTIONS.match(data, at)
        if found is not None:
            at = found.end()
            passed += min(at - found.start(), _AT_ONCE)  # this is an upper bound
        code = data[at] if at < len(data) else None
        if code == _STOP:
            return
        if code in _LONG_TEXTS:
            at = _after_text(data, at, _LONG_TEXTS[code])
            passed += 1
        elif found is None:
            _refuse(code, at)
    raise PickleRefused(f"more than {MAX_INSTRUCTIONS} instructions")


def _after_text(data: bytes, at: int, width: struct.Struct) -> int:
    begin = at + 1 + width.size
    end = begin if begin > len(data) else begin + width.unpack_from(data, at + 1)[0]
    if end > len(data):
        raise PickleRefused(f"damaged: it is cut off in a string at byte {at}")
    return end


def _refuse(code: int | None, at: int) -> NoReturn:
    if code is None:
        raise PickleRefused(f"damaged: it is cut off at byte {at}")
    if code in _CALLING:
        raise PickleRefused(f"instruction {_CALLING[code]} at byte {at}: it would run code")
    raise PickleRefused(f"instruction {code:#04x} at byte {at}: cut off, or not one that plain values need")


class _Reader(pickle.Unpickler):
    """The standard library's reader, for checked data. It imports nothing in any case."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise PickleRefused(f"{module}.{name}: it would run code")
