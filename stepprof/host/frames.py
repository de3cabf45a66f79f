"""The frames of this process's threads, without a deadlock of Python 3.11."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, starmap
from operator import methodcaller
from types import FrameType
from typing import Any

_call: Any = methodcaller("__call__")


def frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, by the thread's identifier."""
    [found] = frames_once()
    return found


def frames_once() -> Iterator[dict[int, FrameType]]:
    """Return an iterator of one item: what `frames` returns at the time when it is taken.

    On Python 3.11 `sys._current_frames` allocates while it holds a lock that a new thread needs. If a
    garbage collection then lets another thread run, the process deadlocks (python/cpython#106883). So
    collections are off during the call. Exhaust the iterator within one call of C code: then no other
    thread runs until they are on again.
    """
    if sys.version_info[:2] != (3, 11):
        return starmap(sys._current_frames, ((),))
    kept: list[Any] = []
    restore = map((gc.disable, gc.enable).__getitem__, map(_call, (gc.isenabled,)))
    begin = map(_call, (partial(kept.extend, restore), gc.disable, sys._current_frames))
    end = map(_call, map(_call, (kept.pop,)))
    return filter(None, chain(begin, end))
