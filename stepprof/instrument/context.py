"""The one cell that holds the current session and recorder: what ``region`` and ``profile_step`` read.

The cell is one object that is never replaced. Its ``recorder`` goes from None to a recorder once per session, never per window:
code under torch.compile guards on it, and a flag that flipped with each recorded step would recompile the model twice per step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from stepprof.instrument.state import State

if TYPE_CHECKING:
    from stepprof.recording.session import Session
    from stepprof.recording.span_files import Recorder

__all__ = [
    "SIMPLE",
    "WAKE_AT",
    "Scope",
    "cell",
    "holding",
    "is_compiling",
    "last_open",
    "open_windows",
    "scope",
]

WAKE_AT = 32_768
"""The writer of spans is woken before its time when so many of them wait."""

SIMPLE = frozenset({str, int, float, bool, type(None)})
"""Attributes of these types are kept as they are; of others only what is safe to keep, at once: a tensor would stay on its device."""

DEEPEST = 100
"""Scopes within one another that are looked through; more are a mistake of ours that must not hang a training loop."""


class Scope:
    """A step, a role and bound attributes that hold for what runs inside: what a window and a `bind` put in force.

    Windows never take their scope back: that would be a second write of a context variable, a tenth of what a window costs. It is
    over when ``_start`` is zero, in whatever order windows end; only tasks and threads that began inside it keep it.
    """

    __slots__ = ("_before", "_bound", "_outer", "_start", "_task", "_thread", "number", "role")

    number: int | None
    """The step."""
    role: str | None
    _bound: Mapping[str, object] | None
    _outer: Scope | None
    _before: Scope | None
    _task: int | None
    _thread: int
    _start: int

    @property
    def bound(self) -> Mapping[str, object] | None:
        """The attributes of the `bind` around."""
        return self._bound


class Cell:
    """Holds what is current in this process. ``scope`` is the last window that is open, for threads that inherit no context."""

    __slots__ = ("__weakref__", "recorder", "scope", "session", "state")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.recorder: Recorder | None = None
        self.scope: Scope | None = None
        self.state = State()

    def __reduce__(self) -> str:
        # A decorated function that is pickled by value (Ray) refers to the cell of the process it arrives in.
        return "cell"

    def clear(self) -> None:
        """No session: what a forked child and a finished run see. Windows that are still open are over, for the next session too."""
        self.session = None
        self.recorder = None
        where, self.scope = self.scope, None
        for _ in range(DEEPEST):
            if where is None:
                break
            where._start = 0
            where = where._before


cell = Cell()

scope: ContextVar[Scope | None] = ContextVar("stepprof_scope", default=None)
"""The window and the bound attributes of this task or thread, or the last ones: see `holding`."""


def holding(where: Scope | None, thread: int, task: int | None) -> Scope | None:
    """The scope that holds in this thread and task, of what stands in their context.

    One that is over holds no more where it was put in force: what it was put around does. A task or thread that began inside it is
    of that step and role for good, also when the window ends before it does.
    """
    for _ in range(DEEPEST):
        if where is None or where._start or where._task != task or where._thread != thread:
            return where
        where = where._outer
    return None


def last_open(where: Scope | None) -> Scope | None:
    """This window, or the one entered last before it that is still open, in whatever thread or task."""
    for _ in range(DEEPEST):
        if where is None or where._start:
            return where
        where = where._before
    return None


def open_windows() -> Iterator[Scope]:
    """Yield the windows that are open, in whatever thread or task, the one entered last first."""
    window = cell.scope
    for _ in range(DEEPEST):
        if window is None:
            return
        if window._start:
            yield window
        window = window._before


def is_compiling() -> bool:
    """Whether Dynamo is tracing this call. It constant-folds to True there, without stepprof ever importing torch."""
    # while torch is still being imported on another thread it has no such function
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    asked = getattr(compiler, "is_compiling", None)
    return asked is not None and asked()
