"""Named intervals: ``region`` as a block, an async block and a decorator; ``bind``, ``mark``, ``counter``.

This module is on the hot path of every training loop that adopts stepprof, and it is traced by
torch.compile. So without a session it reads one cell and nothing else. It checks ``is_compiling()``
before it reads a clock or a context variable: inside a compiled function a region does nothing.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import _GeneratorContextManager
from threading import get_ident
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.attributes import plain
from stepprof.instrument.context import cell
from stepprof.instrument.decorators import decorate, refuse_undecorable
from stepprof.instrument.scope import (
    LONGEST_NAME,
    SIMPLE,
    SURE_BITS,
    WAKE_AT,
    Scope,
    current_scope,
    holding,
    newest,
    set_scope,
)
from stepprof.interrupts import ours

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder

F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, ..., Any]")

SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
CONTEXT_MANAGER = _GeneratorContextManager.__enter__.__code__


def _may_be_suspended(frame: FrameType) -> bool:
    """Return whether a block in this frame may be suspended: the body of a generator or coroutine,
    but not of a `contextmanager`.
    """
    if not frame.f_code.co_flags & SUSPENDED:
        return False
    return frame.f_back is None or frame.f_back.f_code is not CONTEXT_MANAGER


class Region:
    """One interval, as a block or as a decorator. Made by `region`; reused only after it has ended."""

    __slots__ = ("_attributes", "_name", "_start", "_token", "_where")

    lane = False
    """Whether the interval may be suspended: then it is never put on a thread's stack."""

    _name: str
    _attributes: dict[str, object]
    _start: int
    """The start; 0: nothing to record. It is first set under a session, so a region without one
    saves a store.
    """
    _token: object
    _where: Scope | None
    """The scope in which it began, and to which it belongs however late it ends."""

    def __enter__(self) -> Region:
        if cell.recorder is None:  # checked before it is kept: 3 ns, here and at the exit
            return self
        recorder = cell.recorder
        # another thread may have ended the session between the two reads
        if recorder is None or recorder.is_compiling():  # type: ignore[redundant-expr]
            self._start = 0
            return self
        hook = recorder.hook
        if hook is None:
            if not recorder.keep:
                self._start = 0
                return self
            self._token = None
        else:
            lane = self.lane or recorder.task_loop() is not None or _may_be_suspended(sys._getframe(1))
            self._token = hook.enter(self._name, lane)
        # as in the enter of a window and in `_timed`, inlined: a shared helper would be one more call per span, 35 ns of 600
        where = current_scope()
        if where is not None and not where._start:
            where = recorder.still_holding(where)
        self._where = where or newest.window
        self._start = perf_counter_ns()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if cell.recorder is None:
            return
        recorder = cell.recorder
        try:
            start = self._start
            if not start or start < recorder.began:  # entered under a session that has ended
                return
        except ours(
            AttributeError
        ):  # the session began inside the block, or another thread has just ended it
            return
        end = perf_counter_ns()
        self._start = 0
        failed = exc_type is not None and exc_type is not GeneratorExit
        token = self._token
        if token is not None:
            self._token = None
        where, self._where = self._where, None
        _record(recorder, self._name, start, end, where, self._attributes, failed, token)

    async def __aenter__(self) -> Region:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def __call__(self, function: F) -> F:
        """Decorate a function: each call of it is such an interval."""
        refuse_undecorable(function, f"region({self._name!r})")
        name, attributes = self._name, self._attributes
        return decorate(
            function,
            plain=lambda inner: _timed(inner, name, attributes),
            lane=lambda args, kwargs: _fill(LaneRegion(), name, attributes),
        )


class LaneRegion(Region):
    """A region of a generator or coroutine: it may be suspended while others run on the same thread."""

    __slots__ = ("_apart", "_frame", "_key")

    lane = True
    _apart: int | None
    """What tells its span apart if it began while another generator of its name was suspended: it is no recursion of that one."""
    _frame: FrameType
    _key: tuple[int, str] | None

    def __enter__(self) -> Region:
        """Begin the region of a generator."""
        self._start, self._apart, self._key = 0, None, None
        super().__enter__()
        if self._start:
            self._frame, self._key = sys._getframe(1), (get_ident(), self._name)
            opened = _generators.setdefault(self._key, [])
            if opened:  # a suspended frame has no caller
                callers = [each for each in opened if each._frame.f_back is not None]
                self._apart = callers[-1]._apart if callers else id(self)
            opened.append(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._key is not None and (opened := _generators.get(self._key)) is not None:
            if self in opened:
                opened.remove(self)
            if not opened:
                _generators.pop(self._key, None)
        recorder = cell.recorder
        if self._apart is None or recorder is None or not self._start or self._start < recorder.began:
            super().__exit__(exc_type, exc, traceback)
            return
        start, self._start, where, self._where = self._start, 0, self._where, None
        failed = exc_type is not None and exc_type is not GeneratorExit
        end, token, self._token = perf_counter_ns(), self._token, None
        _record(recorder, self._name, start, end, where, self._attributes, failed, token, self._apart)

    async def __aenter__(self) -> Region:
        return Region.__enter__(self)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        Region.__exit__(self, exc_type, exc, traceback)


_generators: dict[tuple[int, str], list[LaneRegion]] = {}
"""The open regions of generators, by the thread and the name with which they began."""


def _timed(function: Callable[..., Any], name: str, attributes: dict[str, object]) -> Callable[..., Any]:
    """Wrap a plain function as a region: the block inlined, at half its price. It cannot be suspended, so it needs no lane."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return function(*args, **kwargs)
        hook = recorder.hook
        if hook is None and not recorder.keep:
            return function(*args, **kwargs)
        token = None if hook is None else hook.enter(name, False)
        where = recorder.scope()
        if where is not None and not where._start:
            where = recorder.still_holding(where)
        where = where or recorder.newest.window
        failed = True
        start = recorder.clock()
        try:
            result = function(*args, **kwargs)
            failed = False
            return result
        finally:
            end = recorder.clock()
            recorder = cell.recorder
            if recorder is not None:
                _record(recorder, name, start, end, where, attributes, failed, token)

    return call


def _record(  # noqa: PLR0917 - keywords cost, and this is what a span costs
    recorder: Recorder,
    name: str,
    start: int,
    end: int,
    where: Scope | None,
    attributes: dict[str, object],
    failed: bool,
    token: object,
    apart: int | None = None,
) -> None:
    """Record the end of a region: its span, and its end in the running capture."""
    thread = recorder.thread.id
    loop = recorder.task_loop()
    task = apart if loop is None else id(recorder.current_task(loop))
    if attributes:
        for value in attributes.values():
            if value.__class__ not in SIMPLE:
                attributes = recorder.plain(attributes)
                break
    if len(name) > LONGEST_NAME:
        name = recorder.cut(name)
    span: Span = (name, "region", start, end, thread, task, where, attributes, failed)
    hook = recorder.hook
    if hook is not None:
        span = hook.exit(token, span)
    elif token is not None:
        recorder.late(token)
    if recorder.keep:
        pending = recorder.pending
        pending.append(span)
        if len(pending) > WAKE_AT:
            recorder.relieve()


def _fill(made: Region, name: str, attributes: dict[str, object]) -> Region:
    made._name = name
    made._attributes = attributes
    return made


@overload
def region(name: F, /) -> F: ...
@overload
def region(name: str, /, **attributes: object) -> Region: ...
def region(name: Any, /, **attributes: object) -> Any:
    """Mark a named interval. A session keeps its span in every step; in a recorded step it is part of the trace.

    Use it as a block, an async block, or a decorator of functions, coroutine functions, generators, async generators and methods
    of every kind. A decorated function keeps its name, signature, kind and pickling. A coroutine or generator is measured from
    its start to its end, over every await and yield. Inside a function under torch.compile a region does nothing.

    Args:
        name: the name of the interval. A bare ``@region`` uses the function's qualified name.
        attributes: plain values (strings, numbers, lists of them) for the span and the trace. ``tokens``, ``samples`` and
            ``batch_size`` state how much work the call did, in tokens and samples.

    >>> with region("reward", samples=64):
    ...     pass
    >>> @region("update_actor")
    ... def update_actor(x):
    ...     return x + 1
    >>> update_actor(1)
    2
    """
    if name.__class__ is str:
        # set here: an __init__ would be one more Python call, a fifth of the block's cost without a
        # session
        made = Region()
        made._name = name
        made._attributes = attributes
        return made
    if isinstance(name, str):  # an enum of strings
        return _fill(Region(), str.__str__(name), attributes)
    if not callable(name) and not isinstance(name, (staticmethod, classmethod, property)):
        session = cell.session
        if session is not None:
            kind = type(name).__name__  # not the value: each of a million steps may have another one
            session.refusals.refuse_once(f"a name of type {kind}: expected a string or a function", "region")
        return _fill(Region(), str(plain(name)), attributes)
    target = name.__func__ if isinstance(name, (staticmethod, classmethod)) else name
    refuse_undecorable(name, f"region({name!r})")
    return _fill(Region(), getattr(target, "__qualname__", type(target).__qualname__), attributes)(name)


def _step_number(step: object) -> int | None:
    """Return the bound step; None if it is not a step number, which the session reports."""
    if step.__class__ is int and not step >> SURE_BITS:  # neither negative nor too large
        return step
    session = cell.session
    return None if session is None or step is None else session.refusals.step_number(step, None, "bind")


class bind(Scope):  # noqa: N801 - a block, named like the function it reads as
    """Add attributes to every region inside the block, across awaits. A bound ``step`` becomes the step of the spans.

    >>> with bind(sample="a1", step=3):
    ...     with region("generate"):
    ...         pass
    """

    __slots__ = ("_attributes",)

    is_window = False

    def __init__(self, **attributes: object) -> None:
        self._attributes = attributes
        self._start = 0

    def __enter__(self) -> bind:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling() or self._start:
            return self
        self._recorder = recorder
        self._thread = recorder.thread.id
        self._task = recorder.task_id()
        self._outer = outer = holding(current_scope(), recorder, self._thread, self._task)
        self._before = around = outer or newest.window
        attributes = self._attributes
        if "step" in attributes:
            self._attributes = attributes = {**attributes, "step": _step_number(attributes["step"])}
        if not SIMPLE.issuperset(map(type, attributes.values())):
            self._attributes = attributes = recorder.plain(attributes)  # spans refer to this object
        if around is None:
            self.number = self.role = None
        else:
            self.number, self.role = around.number, around.role
            attributes = {**(around._bound or {}), **attributes}
        if "step" in attributes:
            attributes = dict(attributes)
            step = attributes.pop("step")
            self.number = step if isinstance(step, int) else self.number
        self._bound = attributes
        self._start = perf_counter_ns()
        set_scope(self)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._start:
            return
        self._start = 0
        self._outer = holding(self._outer, cell.recorder, self._thread, self._task)
        if current_scope() is self:
            set_scope(self._outer)

    async def __aenter__(self) -> bind:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, exc, traceback)


def mark(name: str, /, **attributes: object) -> None:
    """Record an instant on the timeline.

    >>> mark("weights_synced", version=3)
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return
    recorder.instant(name, "mark", attributes)


def counter(name: str, value: float, /) -> None:
    """Record a value over time, such as the length of a queue.

    >>> counter("queue_length", 17)
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return
    recorder.instant(name, "counter", {"value": value})
