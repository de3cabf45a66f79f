"""Named intervals: ``region`` as a block, an async block and a decorator; ``bind``, ``mark``, ``counter``.

This module is on the hot path of every training loop that adopts stepprof, and it is traced by torch.compile. So it reads one
cell and nothing else while no session is on, and it asks ``is_compiling()`` before it touches a clock or a context variable:
inside a compiled function a region is nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import TracebackType
from typing import Any, TypeVar, overload

from stepprof.current import WAKE_AT, Scope, cell, scope
from stepprof.wrapping import decorate

__all__ = ["Region", "bind", "counter", "mark", "region"]

F = TypeVar("F", bound=Callable[..., Any])


class Region:
    """One interval, as a block or as a decorator. Made by `region`; used again only after it has ended."""

    __slots__ = ("_attributes", "_name", "_start", "_token")

    lane = False
    """Whether the interval may be suspended in the middle: then it is never put on a thread's stack."""

    _name: str
    _attributes: dict[str, object]
    _start: int
    _token: object

    def __enter__(self) -> Region:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return self
        hook = recorder.hook
        self._token = None if hook is None else hook.enter(self._name, self.lane or recorder.running_loop() is not None)
        self._start = perf_counter_ns()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        start = self._start
        if not start:
            return
        end = perf_counter_ns()
        self._start = 0
        recorder = cell.recorder
        if recorder is None:
            return
        loop = recorder.running_loop()
        span = (
            self._name,
            "region",
            start,
            end,
            recorder.thread.id,
            None if loop is None else id(recorder.current_task(loop)),
            scope.get() or cell.scope,
            self._attributes,
            exc_type is not None and exc_type is not GeneratorExit,
        )
        if recorder.keep:
            pending = recorder.pending
            pending.append(span)
            if len(pending) > WAKE_AT:
                recorder.relieve()
        hook = recorder.hook
        if hook is not None:
            hook.exit(self._token, span)

    async def __aenter__(self) -> Region:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, exc, traceback)

    def __call__(self, function: F) -> F:
        name, attributes = self._name, self._attributes
        return decorate(
            function,
            block=lambda args, kwargs: _fill(Region(), name, attributes),
            lane=lambda args, kwargs: _fill(LaneRegion(), name, attributes),
        )


class LaneRegion(Region):
    """A region of a generator or coroutine: it may be suspended while others run on the same thread."""

    __slots__ = ()

    lane = True


def _fill(made: Region, name: str, attributes: dict[str, object]) -> Region:
    made._name = name
    made._attributes = attributes
    made._start = 0
    return made


@overload
def region(name: F, /) -> F: ...
@overload
def region(name: str, /, **attributes: object) -> Region: ...
def region(name: Any, /, **attributes: object) -> Any:
    """A named interval of the step: recorded in every step while a session is on, and part of the trace of a recorded one.

    Works as a block, an async block and a decorator of functions, coroutine functions, generators, async generators and methods
    of every kind. A decorated function keeps its name, signature, kind and pickling. A coroutine or generator is measured from
    its start to its end, over every await and yield. Inside a function under torch.compile a region does nothing.

    Args:
        name: what the interval is called; a bare ``@region`` takes the function's qualified name.
        attributes: plain values (text, numbers, lists of them) that land in the span and in the trace.

    >>> with region("reward", batch=64):
    ...     pass
    >>> @region("update_actor")
    ... def update_actor(x):
    ...     return x + 1
    >>> update_actor(1)
    2
    """
    if name.__class__ is str:
        # filled in here: an __init__ would be one more Python call, a fifth of what the whole block costs while nothing is on
        made = Region()
        made._name = name
        made._attributes = attributes
        made._start = 0
        return made
    target = name.__func__ if isinstance(name, (staticmethod, classmethod)) else name
    if not callable(target):
        raise TypeError(f"region({name!r}): expected a name or a function; write region(str(…)) for other names")
    return _fill(Region(), getattr(target, "__qualname__", type(target).__qualname__), attributes)(name)


class bind:  # noqa: N801 - a block, named like the function it reads as
    """Attributes for every region below, across awaits; a bound ``step`` is the span's step.

    >>> with bind(sample="a1", step=3):
    ...     with region("generate"):
    ...         pass
    """

    __slots__ = ("_attributes", "_mine", "_outer")

    def __init__(self, **attributes: object) -> None:
        self._attributes = attributes
        self._mine: Scope | None = None
        self._outer: Scope | None = None

    def __enter__(self) -> bind:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return self
        outer = scope.get()
        step, role, bound = outer or cell.scope or (None, None, None)
        attributes = {**bound, **self._attributes} if bound else dict(self._attributes)
        bound_step = attributes.pop("step", None)
        self._outer = outer
        self._mine = (bound_step if isinstance(bound_step, int) else step, role, attributes)
        scope.set(self._mine)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        mine = self._mine
        if mine is not None:
            self._mine = None
            if scope.get() is mine:
                scope.set(self._outer)

    async def __aenter__(self) -> bind:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, exc, traceback)


def mark(name: str, /, **attributes: object) -> None:
    """An instant on the timeline.

    >>> mark("weights_synced", version=3)
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return
    recorder.instant(name, "mark", attributes)


def counter(name: str, value: float, /) -> None:
    """A value over time, such as the length of a queue.

    >>> counter("queue_length", 17)
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return
    recorder.instant(name, "counter", {"value": value})
