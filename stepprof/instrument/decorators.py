"""Turn a block into a decorator for every kind of function, keeping its kind, signature and
pickling.

The wrapper of a coroutine function is a coroutine function, that of a generator a generator, and so
on, because frameworks check. Each wrapper first reads the one cell: without a session, a plain
function costs one more call and no block is made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import nullcontext
from types import CodeType, MethodType, coroutine
from typing import Any, TypeVar, cast

from stepprof.instrument.context import cell

F = TypeVar("F", bound="Callable[..., Any] | classmethod[Any, ..., Any]")

Block = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]

wrappers: set[CodeType] = set()
"""The code objects of all wrappers. Such a frame holds no lock while the user's function runs above it."""


def refuse_undecorable(function: object, what: str) -> None:
    """Raise TypeError with a suggestion if it is not a function."""
    if isinstance(function, type):
        raise TypeError(f"{what}: {function.__qualname__} is a class; decorate its methods")
    if not callable(function) and not isinstance(function, classmethod):
        raise TypeError(
            f"{what}: expected a name or a function, not {type(function).__name__}; a property is decorated below @property"
        )


def decorate(
    function: F, *, lane: Block, plain: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
) -> F:
    """Return the function wrapped in a block.

    Args:
        function: a function, coroutine function, generator or async generator function, static or class method.
        lane: makes the block (a context manager) of one call from its positional and keyword arguments; where the function is
            asynchronous, so is its block.
        plain: makes the wrapper of a function that cannot be suspended; None: one with such a block.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return cast("F", type(function)(decorate(function.__func__, plain=plain, lane=lane)))
    made = _wrapper(function, lane, plain or (lambda inner: _plain(inner, lane)))
    wrappers.add(made.__code__)
    return cast("F", made)


def _wrapper(function: Any, lane: Block, plain: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """Return the wrapper for this kind of function."""
    # for a callable object, its method shows what a call returns
    kind: Any = (
        function
        if hasattr(function, "__code__") or isinstance(function, (functools.partial, MethodType))
        else type(function).__call__
    )
    if inspect.isasyncgenfunction(kind):
        return _async_generator(function, lane)
    if inspect.iscoroutinefunction(kind) or inspect.iscoroutinefunction(function):
        return _coroutine(function, lane)
    if inspect.isgeneratorfunction(kind):
        awaitable = kind.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE if hasattr(kind, "__code__") else 0
        wrapped = _generator(function, lane)
        return coroutine(wrapped) if awaitable else wrapped
    return plain(function)


def _plain(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return function(*args, **kwargs)
        with block(args, kwargs):
            return function(*args, **kwargs)

    return call


def _coroutine(function: Callable[..., Any], lane: Block) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return await function(*args, **kwargs)
        async with lane(args, kwargs):
            return await function(*args, **kwargs)

    return call


def _generator(function: Callable[..., Any], lane: Block) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        recorder = cell.recorder
        if recorder is None or recorder.is_compiling():
            return (yield from function(*args, **kwargs))
        with lane(args, kwargs):
            return (yield from function(*args, **kwargs))

    return call


def _async_generator(function: Callable[..., Any], lane: Block) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with nullcontext() if cell.recorder is None else lane(args, kwargs):
            source = function(*args, **kwargs)
            try:
                item = await source.asend(None)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await source.aclose()
                        raise
                    except BaseException as error:  # noqa: BLE001 - whatever was thrown in belongs to the wrapped generator
                        item = await source.athrow(error)
                    else:
                        item = await source.asend(sent)
            except StopAsyncIteration:
                return

    return call
