"""Reduce attributes to plain values of bounded size that keep nothing of the training loop's memory
alive.

Attributes are given in the middle of a step. So reducing them must not raise or wait for a device,
whatever they are. What is kept until it is written must not keep a batch alive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepprof.instrument.scope import LONGEST_NAME
from stepprof.interrupts import ours

DEEPEST_VALUE = 4
MOST_ITEMS = 64
MOST_VALUES = 1024
LONGEST_TEXT = 4096
LONGEST_INT = 1024
"""Limits of an attribute's value: levels, items of a list, values in total, characters, bits."""


def short_name(name: str) -> str:
    """Return the name of a span, of bounded length. A name that was cut gets its length and a digest.

    >>> short_name("update_actor"), len(short_name("x" * 10**6)) <= LONGEST_NAME
    ('update_actor', True)
    >>> short_name("x" * 10**6)[-35:]
    'xxx… (1000000 characters, 1b977e9f)'
    """
    if len(name) <= LONGEST_NAME:
        return name
    import hashlib  # not with `import stepprof`: OpenSSL would be a fifth of it

    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    mark = f"… ({len(name)} characters, {digest})"
    return name[: LONGEST_NAME - len(mark)] + mark


def plain(value: object) -> Any:
    """Return an attribute's value as JSON can hold it, of bounded size. Never raises.

    Only plain values are looked into. Other values are replaced by the type's name: printing a
    tensor on a device would wait for the device.

    >>> plain({"loss": float("nan"), "n": (1, 2), "x": object()})
    {'loss': 'nan', 'n': [1, 2], 'x': '<object>'}
    """
    try:
        return _plain(value, DEEPEST_VALUE, itertools.count())
    except ours(Exception):  # a user's subclass may raise anything; the span keeps its type
        return f"<{type(value).__name__}>"


def _plain(value: Any, depth: int, seen: itertools.count[int]) -> Any:
    kind = value.__class__
    if kind is bool or value is None:
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return number if number.bit_length() <= LONGEST_INT else f"<int of {number.bit_length()} bits>"
    if isinstance(value, float):
        real = float.__add__(value, 0.0)
        return real if math.isfinite(real) else float.__repr__(real)
    if depth and isinstance(value, (Mapping, list, tuple)):
        if isinstance(value, Mapping):
            return {_key(key): _item(item, depth, seen) for key, item in _first(value.items(), seen)}
        return [_item(item, depth, seen) for item in _first(value, seen)]
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _plain(value.item(), 0, seen)
    return f"<{type(value).__name__}>"


def _item(value: object, depth: int, seen: itertools.count[int]) -> Any:
    try:
        return _plain(value, depth - 1, seen)
    except ours(Exception):  # as in `plain`: the others of a list are kept
        return f"<{type(value).__name__}>"


def _key(key: object) -> str:
    text = _plain(key, 0, itertools.count())
    return text if isinstance(text, str) else str(text)


def _first(items: Iterable[Any], seen: itertools.count[int]) -> Iterator[Any]:
    """Return the first items, up to the limit for one list or tree of lists."""
    for item in itertools.islice(items, MOST_ITEMS):
        if next(seen) >= MOST_VALUES:
            return
        yield item
