"""What of an attribute is kept: plain values, of bounded size, and never anything that holds on to the training loop's memory.

Attributes are given where a step is in the middle of its work. So what is done with them must neither raise nor wait for a device,
whatever they are, and what is kept of them until it is written must not keep a batch alive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["LONGEST_NAME", "plain", "short_name"]

DEEPEST_VALUE = 4
MOST_ITEMS = 64
MOST_VALUES = 1024
LONGEST_TEXT = 4096
LONGEST_NAME = 1024
"""Characters of the name of a region, mark, counter or window."""
LONGEST_INT = 1024
"""Of an attribute's value: levels, items of a list, values in all, characters, bits."""


def short_name(name: str) -> str:
    """Return the name of a span, of bounded length; one that is cut says so, and stays different from others.

    >>> short_name("update_actor"), len(short_name("x" * 10**6)) <= LONGEST_NAME
    ('update_actor', True)
    >>> short_name("x" * 10**6)[-35:]
    'xxx… (1000000 characters, 1b977e9f)'
    """
    if len(name) <= LONGEST_NAME:
        return name
    import hashlib  # not with `import stepprof`, of which OpenSSL would be a fifth

    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    mark = f"… ({len(name)} characters, {digest})"
    return name[: LONGEST_NAME - len(mark)] + mark


def plain(value: object) -> Any:
    """An attribute's value as JSON can hold it, of bounded size. Never raises, whatever the value is.

    Only plain values are looked into. Of anything else the type's name is kept: the text of a tensor on a device would make the
    host wait for the device.

    >>> plain({"loss": float("nan"), "n": (1, 2), "x": object()})
    {'loss': 'nan', 'n': [1, 2], 'x': '<object>'}
    """
    try:
        return _plain(value, DEEPEST_VALUE, itertools.count())
    except Exception:  # noqa: BLE001 - whatever a user's subclass does: its type says enough, in the span itself
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
    except Exception:  # noqa: BLE001 - as in `plain`: the others of a list are kept
        return f"<{type(value).__name__}>"


def _key(key: object) -> str:
    text = _plain(key, 0, itertools.count())
    return text if isinstance(text, str) else str(text)


def _first(items: Iterable[Any], seen: itertools.count[int]) -> Iterator[Any]:
    """The most items that are kept, of one list or of a tree of them, so that a line stays readable."""
    for item in itertools.islice(items, MOST_ITEMS):
        if next(seen) >= MOST_VALUES:
            return
        yield item
