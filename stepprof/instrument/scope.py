"""The scope of a window or a `bind`: its step, its role and its attributes, as the code inside it sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

__all__ = [
    "DEEPEST",
    "SIMPLE",
    "WAKE_AT",
    "Measured",
    "Newest",
    "Scope",
    "Span",
    "holding",
    "last_open",
    "newest",
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

    It is over when ``_start`` is zero, in whatever order windows end. A window that ends where it was entered also takes itself out of
    the context, so that only tasks and threads that began inside it keep it: that write is a tenth of what a window costs.
    """

    __slots__ = ("_before", "_bound", "_outer", "_recorder", "_start", "_task", "_thread", "number", "role")

    number: int | None
    """The step."""
    role: str | None
    _bound: Mapping[str, object] | None
    _outer: Scope | None
    _before: Scope | None
    _recorder: object
    """That of the session in which it was put in force."""
    _task: int | None
    _thread: int
    _start: int

    @property
    def bound(self) -> Mapping[str, object] | None:
        """The attributes of the `bind` around."""
        return self._bound


Span = tuple[str, str, int, int, int, "int | None", "Scope | None", "Mapping[str, object] | None", bool]
"""(name, kind, start, end [perf_counter_ns], native thread id, task id, scope, attributes, error)."""


class Measured(Span):
    """The span of a region in a recorded window, with the CPU time of its thread."""

    cpu_ns: int


class Newest:
    """Holds the open window that was entered last in this process, for threads that inherit no context."""

    __slots__ = ("window",)

    def __init__(self) -> None:
        self.window: Scope | None = None


newest = Newest()

scope: ContextVar[Scope | None] = ContextVar("stepprof_scope", default=None)
"""The window and the bound attributes of this task or thread, or the last ones: see `holding`."""


def holding(where: Scope | None, recorder: object, thread: int, task: int | None) -> Scope | None:
    """The scope that holds in this thread and task, of what stands in their context.

    One that is over holds no more where it was put in force: what it was put around does. A task or thread that began inside it is
    of that step and role for good, also when the window ends before it does; but not in the session that comes after.
    """
    for _ in range(DEEPEST):
        if where is None or where._start:
            return where
        if (where._task != task or where._thread != thread) and where._recorder is recorder:
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
