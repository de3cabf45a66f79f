"""Remember the windows that `start` opened and no `stop` has closed yet, and find those whose task or cell has ended.

A window belongs to the task that opened it, or to its thread. In a notebook it also belongs to its cell: a cell
that fails leaves its windows open, and the next cell is another task.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stepprof.recording.window_handle import LeftOpen

_Key = tuple[int, "str | None"]


@dataclass(eq=False, slots=True)
class _Opened:
    """A window of `start` that was not stopped."""

    window: Any
    key: _Key
    """Its task or thread, and its role."""
    thread: int = field(default_factory=threading.get_ident)
    has_failed: bool = False
    """Whether its task or cell has ended by an exception: no code is left that would stop it."""


class _Cell:
    """A cell of a notebook, or of an IPython shell, that runs now."""

    def __init__(self) -> None:
        self.opened: set[tuple[StartedWindows, _Key]] = set()


class _Cells:
    """The running cell of the main thread, by the events of IPython."""

    def __init__(self) -> None:
        self._running: _Cell | None = None
        self._shell: Any = None

    def running(self) -> _Cell | None:
        """Return the cell that runs; None: this is no cell."""
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = None if get_shell is None else get_shell()
        if shell is None or threading.current_thread() is not threading.main_thread():
            return None
        if shell is not self._shell:
            shell.events.register("post_run_cell", self._ended)
            self._shell = shell
        self._running = self._running or _Cell()
        return self._running

    def _ended(self, result: Any) -> None:
        cell, self._running = self._running, None
        if cell is not None and not result.success:
            for windows, key in cell.opened:
                windows.note_end(key, has_failed=True)


_cells = _Cells()


class StartedWindows:
    """The windows of `start` that are open."""

    def __init__(self) -> None:
        self._opened: dict[_Key, _Opened] = {}
        self._ended: dict[_Opened, None] = {}
        """Those whose task has ended, or whose cell has failed."""
        self._keys: weakref.WeakKeyDictionary[asyncio.Task[Any], set[_Key]] = weakref.WeakKeyDictionary()

    def begin(self, window: Any, role: str | None) -> list[tuple[Any, LeftOpen]]:
        """Add a window. Return those that it replaces, each with the error that closes it.

        It replaces the window of its role that the same task or thread left open, or a task that has
        ended since, and every window whose task or cell has failed.
        """
        task = _current_task()
        if (
            task is None and not self._ended and "IPython" not in sys.modules
        ):  # the usual case, at half the price
            thread = threading.get_ident()
            key = thread, role
            left = self._opened.get(key)
            self._opened[key] = window._key = _Opened(window, key, thread)
            return [] if left is None else self._closed([left])
        key = (threading.get_ident() if task is None else id(task), role)
        replaced = [
            opened
            for opened in list(self._ended)
            if opened.has_failed or (opened.key[1] == role and opened.thread == threading.get_ident())
        ]
        if key in self._opened:
            replaced.append(self._opened.pop(key))
        self._opened[key] = window._key = _Opened(window, key)
        if task is not None:
            self._keys_of(task).add(key)
        cell = _cells.running()
        if cell is not None:
            cell.opened.add((self, key))
        return self._closed(replaced)

    def of_failed_owners(self) -> list[tuple[Any, LeftOpen]]:
        """Return the windows whose task or cell has failed, each with the error that closes it."""
        return self._closed([opened for opened in list(self._ended) if opened.has_failed])

    def forget(self, window: Any) -> None:
        """Note that a window was stopped."""
        opened = getattr(window, "_key", None)
        if isinstance(opened, _Opened):
            self._ended.pop(opened, None)
            if self._opened.get(opened.key) is opened:
                self._opened.pop(opened.key, None)

    def note_end(self, key: _Key, *, has_failed: bool) -> None:
        """Note that the task or the cell that has opened this window has ended, if it is still open."""
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.has_failed = has_failed
            self._ended[opened] = None

    def _keys_of(self, task: asyncio.Task[Any]) -> set[_Key]:
        keys = self._keys.get(task)
        if keys is None:
            keys = self._keys[task] = set()
            task.add_done_callback(partial(self._task_ended, keys))
        return keys

    def _task_ended(self, keys: set[_Key], task: asyncio.Task[Any]) -> None:
        # not `exception()`: asyncio would no longer report an exception that the job does not look at
        has_failed = task.cancelled() or getattr(task, "_exception", None) is not None
        for key in keys:
            self.note_end(key, has_failed=has_failed)

    def _closed(self, replaced: list[_Opened]) -> list[tuple[Any, LeftOpen]]:
        found = []
        for opened in replaced:
            self._ended.pop(opened, None)
            if opened.window._start:
                by = (
                    "the task or cell that opened it failed"
                    if opened.has_failed
                    else "closed by the next start of its role"
                )
                found.append((opened.window, LeftOpen(f"the window was left open, and {by}")))
        return found


def _current_task() -> asyncio.Task[Any] | None:
    loop = asyncio._get_running_loop()
    return None if loop is None else asyncio.current_task(loop)
