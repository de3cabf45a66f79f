"""Find the current task of trio, or the current greenlet. Spans name it like a task of asyncio: what runs next to each other on one thread is no recursion.

Neither library is imported here; a program that uses one has imported it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

Find = Callable[[], Any]


def find_task() -> Find | None:
    """Return a function that returns what runs now: the task of trio, the loop of asyncio, or the greenlet; None: none of them.

    Return None if the program has imported neither trio nor greenlet.
    """
    of_trio, current = _trio(), getattr(sys.modules.get("greenlet"), "getcurrent", None)
    if of_trio is None:
        return None if current is None else _of_greenlet(current)

    otherwise = asyncio._get_running_loop if current is None else _of_greenlet(current)

    def find() -> Any:
        found = of_trio()
        return otherwise() if found is None else found

    return find


def task_of(found: Any) -> Any:
    """Return the task: that of asyncio's loop, or what was found itself."""
    return asyncio.current_task(found) if found is asyncio._get_running_loop() else found


def _trio() -> Find | None:
    trio: Any = sys.modules.get("trio")
    ask = getattr(getattr(trio, "lowlevel", None), "current_task", None)
    if ask is None:  # not imported, or another thread is importing it
        return None
    running: Any = getattr(sys.modules.get("trio._core._run"), "GLOBAL_RUN_CONTEXT", None)
    if running is not None:  # a thirtieth of the price of an exception for each region outside of trio
        return lambda: getattr(running, "task", None)

    def find() -> Any:
        try:
            return ask()
        except RuntimeError:  # this thread does not run trio
            return None

    return find


def _of_greenlet(current: Find, running_loop: Find = asyncio._get_running_loop) -> Find:
    """Return such a function without trio. structlog imports greenlet wherever it is installed, so this is one call and no more."""

    def find() -> Any:
        loop = running_loop()
        if loop is not None:
            return loop
        here = current()
        return None if here.parent is None else here  # the thread itself

    return find
