"""Keep in memory what ``region`` and ``profile_step`` measure.

A span is a plain tuple appended to a deque. Appending is atomic in CPython, so the training loop
takes no lock. A background thread writes the deque to files (``stepprof.recording.span_files``).
The deque is bounded: if that thread cannot keep up (a dead disk), the oldest spans are dropped and
counted, and the count is logged and written.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.attributes import plain, short_name
from stepprof.instrument.other_tasks import find_task, task_of
from stepprof.instrument.scope import (
    LONGEST_NAME,
    SIMPLE,
    WAKE_AT,
    Scope,
    Span,
    current_scope,
    holding,
    newest,
)
from stepprof.interrupts import ours

MAX_PENDING = 262_144
"""Maximum number of spans in memory: about 64 MB at ~250 bytes each (benchmarks, "memory")."""


class Hook(Protocol):
    """Observes regions while a selected window is open: puts them into the capture, applies caps, counts a schedule."""

    def enter(self, name: str, lane: bool) -> object:
        """Note that a region begins. ``lane``: it may be suspended, so it is not put on the thread's stack."""
        ...

    def exit(self, token: object, span: Span) -> Span:
        """Note that a region ends, with the result of `enter`; or a window, a mark, a counter.
        Return the span, with any additional measurements.
        """
        ...


class _Thread(threading.local):
    """The operating system's thread id, read once per thread: the system call costs more than a span."""

    def __init__(self) -> None:
        self.id = threading.get_native_id()


def _nothing_late(token: object) -> None:
    """Do nothing: without a capture, nothing is left open."""


class Recorder:
    """The spans of this process, from any thread or task, while a session is on.

    ``hook`` is set only while a selected window is open. If a region ends later than that, ``late``
    receives the value that the hook returned at its beginning. ``keep`` False (``spans = false``)
    records nothing for the files. What started before ``began`` belongs to another session.
    """

    __slots__ = (
        "_dropped",
        "began",
        "clock",
        "current_task",
        "first_cut",
        "hook",
        "is_compiling",
        "keep",
        "late",
        "newest",
        "pending",
        "running_loop",
        "scope",
        "task_loop",
        "thread",
        "wake",
    )

    def __init__(self, *, keep: bool = True, wake: Callable[[], None] = lambda: None) -> None:
        # A decorated function finds these here, and not as globals: they could not be pickled with it.
        self.clock, self.scope, self.newest = perf_counter_ns, current_scope, newest
        self.began = perf_counter_ns()
        self.pending: deque[Span] = deque()
        self.keep = keep
        self.hook: Hook | None = None
        self.late: Callable[[object], object] = _nothing_late
        self.wake = wake
        self.thread = _Thread()
        self.running_loop = asyncio._get_running_loop
        self.task_loop: Callable[[], Any] = asyncio._get_running_loop
        """Returns what a span's task is found by: the running loop, or a task of trio or a greenlet; None: this is no task."""
        self.current_task: Callable[[Any], Any] = asyncio.current_task
        self.is_compiling: Callable[[], bool] = self._ask_torch
        self._dropped = itertools.count()
        self.first_cut: str | None = None
        self.look_for_torch()
        self.look_for_tasks()

    def look_for_tasks(self) -> None:
        """Tell tasks of trio and greenlets apart as soon as the program has imported one of them; without, spans cost no more."""
        find = find_task()
        if find is not None:
            self.current_task, self.task_loop = task_of, find

    def look_for_torch(self) -> None:
        """Use torch's own check as soon as torch is loaded: a third of the price of a look-up at each region."""
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        # both fold to True under Dynamo; the first is a bare `return False` otherwise
        for name in ("is_dynamo_compiling", "is_compiling"):
            if hasattr(compiler, name):
                self.is_compiling = getattr(compiler, name)
                return

    def _ask_torch(self) -> bool:
        """Return whether Dynamo is tracing this call, until torch is loaded. Dynamo itself sees only the first True."""
        if "torch" not in sys.modules:
            return False
        if is_compiling():
            return True
        self.look_for_torch()
        return False

    @staticmethod
    def plain(attributes: Mapping[str, object]) -> dict[str, object]:
        """Return attributes as they are kept until they are written: without references to the training loop's objects."""
        return {str.__str__(name): plain(value) for name, value in attributes.items()}

    def cut(self, name: str) -> str:
        """Shorten a name that is too long; the writer logs the first one."""
        name = short_name(name)
        if self.first_cut is None:
            self.first_cut = name
        return name

    def task_id(self) -> int | None:
        """Return the name of the current task in spans, or None outside of one."""
        loop = self.task_loop()
        return None if loop is None else id(self.current_task(loop))

    def where(self) -> Scope | None:
        """Return the scope of a span that begins here and now."""
        return holding(current_scope(), self, self.thread.id, self.task_id()) or newest.window

    def still_holding(self, where: Scope) -> Scope | None:
        """Return the scope that applies here, where this one, which has ended, is that of the context."""
        thread, task = self.thread.id, self.task_id()
        # where._outer is None after a window of this very thread: the loop between two steps
        if where._outer is None and where._thread == thread and where._task == task:
            return None
        return holding(where, self, thread, task)

    def relieve(self) -> None:
        """Wake the writer, because many spans wait; beyond the limit, drop the oldest."""
        self.wake()
        if len(self.pending) > MAX_PENDING:
            try:
                self.pending.popleft()
            except ours(IndexError):
                return
            next(self._dropped)

    def instant(self, name: str, kind: str, attributes: Mapping[str, object]) -> None:
        """Record a point in time, also in the running capture."""
        now = perf_counter_ns()
        for value in attributes.values():
            if value.__class__ not in SIMPLE:
                attributes = self.plain(attributes)
                break
        if name.__class__ is not str:
            name = str(plain(name))
        if len(name) > LONGEST_NAME:
            name = self.cut(name)
        thread = self.thread.id
        loop = self.task_loop()
        task = None if loop is None else id(self.current_task(loop))
        where = current_scope()
        if where is not None and not where._start:
            where = holding(where, self, thread, task)
        span: Span = (name, kind, now, now, thread, task, where or newest.window, attributes, False)
        if self.keep:
            self.pending.append(span)
            if len(self.pending) > WAKE_AT:
                self.relieve()
        hook = self.hook
        if hook is not None:
            hook.exit(None, span)

    def take_dropped(self) -> int:
        """Return how many spans were dropped since the last call."""
        dropped = next(self._dropped)
        self._dropped = itertools.count()
        return dropped


def is_compiling() -> bool:
    """Return whether Dynamo is tracing this call. It constant-folds to True there, without stepprof importing torch."""
    # torch lacks this function while another thread is still importing it
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    asked = getattr(compiler, "is_compiling", None)
    return asked is not None and asked()
