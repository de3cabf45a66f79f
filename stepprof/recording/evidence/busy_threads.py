"""Find the threads that work: those that do not wait for work themselves.

A pool may have hundreds of threads that wait in its queue. The difference shows in the code of their innermost
frames, within one call of C code: see `stacks` for why no frame is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterable, Iterator
from itertools import chain, compress, filterfalse, islice, repeat
from operator import attrgetter, le, methodcaller, not_
from pathlib import Path
from typing import Any

from stepprof.host.frames import frames_once

_LIBRARY = Path(threading.Condition.wait.__code__.co_filename).parent
_WAITING = {
    "threading.py": ("wait", "join", "_wait_for_tstate_lock", "run", "_bootstrap_inner", "_bootstrap"),
    "queue.py": ("get",),
    "selectors.py": ("select",),
    "concurrent/futures/thread.py": ("_worker",),
    "multiprocessing/pool.py": ("worker", "_handle_workers", "_wait_for_updates", "_handle_tasks", "_handle_results"),
}  # fmt: skip
_IDLE = frozenset((str(_LIBRARY / file), name) for file, names in _WAITING.items() for name in names)
"""File and name of a function in which a thread waits for work, or for a thread that works."""
_WORKING = frozenset({"acquire", "_communicate"})
"""Callers of such a function that wait for something else: a semaphore, another program."""

_where = attrgetter("f_code.co_filename", "f_code.co_name")
_registered: dict[int, Any] = getattr(threading, "_active", {})
"""The `threading.Thread` of each identifier: a thread of C code that calls Python has none."""


def busy_threads(without: Container[int], most: int) -> dict[int, int]:
    """Return the native id of at most so many busy threads by their identifiers, without stepprof's own.

    Args:
        without: identifiers of threads that are left out.
        most: maximum number.
    """
    idents = [*filterfalse(without.__contains__, _busy_idents())]
    own = map(str.startswith, _attributes("_name", "", idents), repeat("stepprof"))
    threads = zip(idents, _attributes("_native_id", None, idents), strict=True)
    found = islice(compress(threads, map(not_, own)), most)
    return {ident: native for ident, native in [*found] if native is not None}


def _attributes(name: str, default: object, idents: Iterable[int]) -> Iterator[Any]:
    """Return an attribute of the `threading.Thread` of each identifier. Exhaust it within one call of C code, so
    that no thread's last reference is dropped here.
    """
    return map(getattr, map(_registered.get, idents), repeat(name), repeat(default))


def _busy_idents() -> list[int]:
    """Return the identifiers of the threads whose innermost frames show that they do not wait for work."""
    found = chain.from_iterable(map(repeat, frames_once(), (3,)))  # the same frames for each stream below

    def each(function: Any, *streams: Any) -> Iterator[Any]:
        return map(map, repeat(function), *streams)

    def attribute(name: str, stream: Any) -> Iterator[Any]:
        return each(getattr, stream, repeat(repeat(name)), repeat(repeat(None)))

    idents, inner, outer = (map(methodcaller(part), found) for part in ("keys", "values", "values"))
    waits = each(_IDLE.__contains__, each(_where, inner))
    callers = attribute("co_name", attribute("f_code", attribute("f_back", outer)))
    works = each(_WORKING.__contains__, callers)
    return list(chain.from_iterable(map(compress, idents, each(le, waits, works))))
