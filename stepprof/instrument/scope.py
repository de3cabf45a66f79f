"""The scope of a window or a `bind`: its step, its role and its attributes, as the code inside it sees them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

WAKE_AT = 32_768
"""The number of waiting spans at which the writer is woken early."""

LONGEST_NAME = 1024
"""Maximum characters of the name of a region, mark, counter or window."""

LARGEST_STEP = 10**18 - 1
"""The largest step number, for recording and for reading: step folders have up to 18 digits."""
SURE_BITS = 59
"""Numbers of so many bits are step numbers: a shift is faster than a comparison with both bounds."""
UNSEEN = 1
"""Marks the start time of a window that is missing: neither selected nor, with ``spans = false``, recorded at all."""

SIMPLE = frozenset({str, int, float, bool, type(None)})
"""Attributes of these types are kept unchanged. Others are reduced to plain values at once: a tensor would stay on its device."""

DEEPEST = 100
"""The maximum depth of nested scopes that is searched. A deeper nesting is a bug of stepprof, which
must not hang a training loop.
"""


class Scope:
    """A step, a role and bound attributes for the code inside a window or a `bind`.

    It is over when ``_start`` is zero, in whatever order windows end. A window that ends where it
    was entered also removes itself from the context, so that only tasks and threads that began
    inside keep it. That write is a tenth of a window's cost.
    """

    __slots__ = ("_before", "_bound", "_outer", "_recorder", "_start", "_task", "_thread", "number", "role")

    is_window = True
    """False of a `bind`."""

    number: int | None
    """The step."""
    role: str | None
    _bound: Mapping[str, object] | None
    _outer: Scope | None
    _before: Scope | None
    _recorder: object
    """The session in which it was entered."""
    _task: int | None
    _thread: int
    _start: int

    @property
    def bound(self) -> Mapping[str, object] | None:
        """Return the attributes of the enclosing `bind`."""
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

_scope: ContextVar[Scope | None] = ContextVar("stepprof_scope", default=None)
"""The window and the bound attributes of this task or thread, or the last ones; see `holding`."""

current_scope, set_scope = _scope.get, _scope.set
"""Bound once: CPython 3.11 makes a new bound method at each call through an imported name, which costs 30 ns."""


def holding(where: Scope | None, recorder: object, thread: int, task: int | None) -> Scope | None:
    """Return the scope that applies in this thread and task.

    Where a scope was entered, it no longer applies once it is over; the enclosing one does. A task
    or thread that began inside a window keeps its step and role for good, even when the window ends
    first, but not in a later session.
    """
    for _ in range(DEEPEST):
        if where is None or where._start:
            return where
        if (where._task != task or where._thread != thread) and where._recorder is recorder:
            return where
        where = where._outer
    return None


def last_open(where: Scope | None) -> Scope | None:
    """Return this window, or the one entered last before it that is still open, in any thread or task."""
    for _ in range(DEEPEST):
        if where is None or where._start:
            return where
        where = where._before
    return None
