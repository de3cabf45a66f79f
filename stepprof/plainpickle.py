"""Reading a pickle of plain values without running it.

A pickle is a program, and an artifact may come from anywhere. This reads those of its instructions that make lists, tuples, tables, texts, numbers, booleans and None, which is all that a snapshot of
torch's needs, and refuses every other one: nothing is imported and nothing is called. What a file could do to the memory of its reader is bounded, too: `pickle.Unpickler` makes room for whatever place
in its memo a file names, before it looks at anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

__all__ = ["PickleRefused", "read_plain"]

MAX_BYTES = 256 << 20
MAX_INSTRUCTIONS = 60_000_000
MAX_DEPTH = 100
_MAX_PROTOCOL = 5


class PickleRefused(ValueError):
    """The file is no pickle of plain values, is damaged, or goes beyond a bound."""


def read_plain(data: bytes, *, max_instructions: int = MAX_INSTRUCTIONS) -> Any:
    """The value that the pickle says. Raises PickleRefused.

    >>> import pickle
    >>> read_plain(pickle.dumps({"segments": [], "share": 0.5}))
    {'segments': [], 'share': 0.5}
    >>> read_plain(pickle.dumps(print, protocol=4))
    Traceback (most recent call last):
      ...
    stepprof.plainpickle.PickleRefused: instruction STACK_GLOBAL at byte 30: it would run code
    """
    if len(data) > MAX_BYTES:
        raise PickleRefused(f"{len(data)} bytes, more than the {MAX_BYTES} that are read")
    reader = _Reader(data)
    try:
        for _ in range(max_instructions):
            code = data[reader.at]
            reader.at += 1
            if code == _STOP:
                if reader.marks or len(reader.stack) != 1:
                    raise PickleRefused(f"damaged: it ends at byte {reader.at} in the middle of a value")
                return reader.stack[0]
            act = _ACTS[code]
            if act is None:
                name = _CALLING.get(code)
                told = f"instruction {name}" if name else f"unknown instruction {code:#04x}"
                raise PickleRefused(
                    f"{told} at byte {reader.at - 1}: {'it would run code' if name else 'refused'}"
                )
            act(reader)
    except PickleRefused:
        raise
    except (IndexError, KeyError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise PickleRefused(f"damaged at byte {min(reader.at, len(data))}: {type(error).__name__}") from error
    raise PickleRefused(f"more than {max_instructions} instructions")


class _Reader:
    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise PickleRefused(f"damaged: it is cut off at byte {len(self.data)}")
        return self.data[begin : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")


def _value(make: Callable[[_Reader], Any]) -> Callable[[_Reader], None]:
    def act(reader: _Reader) -> None:
        reader.stack.append(make(reader))

    return act


def _proto(reader: _Reader) -> None:
    version = reader.number(1)
    if version > _MAX_PROTOCOL:
        raise PickleRefused(f"protocol {version} is not known")


def _skip_frame(reader: _Reader) -> None:
    reader.number(8)


def _mark(reader: _Reader) -> None:
    if len(reader.marks) >= MAX_DEPTH:
        raise PickleRefused(f"nested deeper than {MAX_DEPTH}")
    reader.marks.append(reader.stack)
    reader.stack = []


def _items(reader: _Reader) -> list[Any]:
    items, reader.stack = reader.stack, reader.marks.pop()
    return items


def _long1(reader: _Reader) -> int:
    return int.from_bytes(reader.take(reader.number(1)), "little", signed=True)


def _text(width: int) -> Callable[[_Reader], str]:
    return lambda reader: reader.take(reader.number(width)).decode("utf-8", "replace")


def _append(reader: _Reader) -> None:
    item = reader.stack.pop()
    _list(reader.stack[-1]).append(item)


def _appends(reader: _Reader) -> None:
    items = _items(reader)
    _list(reader.stack[-1]).extend(items)


def _set_item(reader: _Reader) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    _table(reader.stack[-1])[_key(key)] = value


def _set_items(reader: _Reader) -> None:
    items = _items(reader)
    table = _table(reader.stack[-1])
    for key, value in zip(items[::2], items[1::2], strict=True):
        table[_key(key)] = value


def _tuple(count: int) -> Callable[[_Reader], None]:
    def act(reader: _Reader) -> None:
        stack = reader.stack
        if len(stack) < count:
            raise IndexError
        stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]

    return act


def _tuple_of_marked(reader: _Reader) -> None:
    items = _items(reader)
    reader.stack.append(tuple(items))


def _memoize(reader: _Reader) -> None:
    reader.memo[len(reader.memo)] = reader.stack[-1]


def _put(width: int) -> Callable[[_Reader], None]:
    def act(reader: _Reader) -> None:
        reader.memo[reader.number(width)] = reader.stack[-1]

    return act


def _get(width: int) -> Callable[[_Reader], None]:
    def act(reader: _Reader) -> None:
        reader.stack.append(reader.memo[reader.number(width)])

    return act


def _list(value: object) -> list[Any]:
    if type(value) is not list:
        raise PickleRefused("damaged: something is added to what is no list")
    return value


def _table(value: object) -> dict[str, Any]:
    if type(value) is not dict:
        raise PickleRefused("damaged: a key is set in what is no table")
    return value


def _key(value: object) -> str:
    if type(value) is not str:
        raise PickleRefused(f"a key is no text but {type(value).__name__}")
    return value


_STOP = ord(".")
_PLAIN: dict[bytes, Callable[[_Reader], None]] = {
    b"\x80": _proto,
    b"\x95": _skip_frame,
    b"(": _mark,
    b"N": _value(lambda reader: None),
    b"\x88": _value(lambda reader: True),
    b"\x89": _value(lambda reader: False),
    b"K": _value(lambda reader: reader.number(1)),
    b"M": _value(lambda reader: reader.number(2)),
    b"J": _value(lambda reader: int.from_bytes(reader.take(4), "little", signed=True)),
    b"\x8a": _value(_long1),
    b"G": _value(lambda reader: struct.unpack(">d", reader.take(8))[0]),
    b"\x8c": _value(_text(1)),
    b"X": _value(_text(4)),
    b"\x8d": _value(_text(8)),
    b"]": _value(lambda reader: []),
    b"}": _value(lambda reader: {}),
    b")": _value(lambda reader: ()),
    b"a": _append,
    b"e": _appends,
    b"s": _set_item,
    b"u": _set_items,
    b"t": _tuple_of_marked,
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"\x94": _memoize,
    b"q": _put(1),
    b"r": _put(4),
    b"h": _get(1),
    b"j": _get(4),
}
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
"""The instructions that import or call something, by the names that they have in the standard library."""
_ACTS: list[Callable[[_Reader], None] | None] = [_PLAIN.get(bytes([code])) for code in range(256)]
