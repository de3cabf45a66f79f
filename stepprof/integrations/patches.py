"""Patches of a framework that never change what it does.

An exception of the original function passes through. An exception of stepprof is logged once and
ends that patch; the original still runs exactly once. All patches can be undone.

A patch is a plain function with the name of the original, so that pickling by reference finds it:
Ray copies every method of an actor's class into a class that it pickles.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import wrapt

from stepprof.integrations.timer_switch import timers
from stepprof.interrupts import ours
from stepprof.log import logger

Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]
"""Called with the instance, the positional and the keyword arguments; returns a token for `After`."""
After = Callable[[Any, BaseException | None], None]
"""Called with the token and the exception of the original; None: it returned."""
Change = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Called with the result, the positional and the keyword arguments; returns what the caller gets."""

_MARK = "_stepprof_adapter"


class Patches:
    """The patches that one adapter has made.

    Args:
        adapter: its name, for the log.
    """

    def __init__(self, adapter: str) -> None:
        self.adapter = adapter
        self.active = True
        self._undo: list[Callable[[], None]] = []
        self._failed: set[str] = set()

    def around(
        self, target: str, before: Before | None = None, after: After | None = None, *, timer: bool = False
    ) -> None:
        """Call `before` and `after` around each call of a function or method, and over the life of a coroutine or generator.

        Args:
            target: ``module:Class.method`` or ``module:function``.
            before: runs before the original.
            after: runs after it, also if it raised.
            timer: both only measure, and are skipped in steps that keep nothing.
        """

        def make(function: Any, bound: int) -> Any:
            made = self._around(target, function, bound, before, after)
            return _only_if_kept(target, function, made) if timer else made

        self._replace(target, make)

    def block(self, target: str, before: Before, after: After, *, timer: bool = False) -> None:
        """Call `before` and `after` around each block of a function that returns a context manager.

        Args:
            target: ``module:Class.method`` or ``module:function``.
            before: runs before the block is entered, with the arguments of the call that made it.
            after: runs after it, also if it raised.
            timer: both only measure, and are skipped in steps that keep nothing.
        """

        def make(function: Any, bound: int) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                instance = args[0] if bound and args else None
                enter = functools.partial(self.guarded, target, before, instance, args[bound:], kwargs)
                return _Block(
                    function(*args, **kwargs), enter, functools.partial(self.guarded, target, after)
                )

            return _only_if_kept(target, function, call) if timer else call

        self._replace(target, make)

    def result(self, target: str, change: Change) -> None:
        """Pass what a function or a coroutine returns through `change`.

        Args:
            target: ``module:Class.method`` or ``module:function``.
            change: returns what the caller gets; if it raises, the result is unchanged.
        """

        def make(function: Any, bound: int) -> Any:
            def changed(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                new = self.guarded(target, change, result, args[bound:], kwargs)
                return result if new is None else new

            def call(*args: Any, **kwargs: Any) -> Any:
                return changed(function(*args, **kwargs), args, kwargs)

            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return changed(await function(*args, **kwargs), args, kwargs)

            return call_async if inspect.iscoroutinefunction(function) else call

        self._replace(target, make)

    def undo(self) -> None:
        """Undo every patch. A patch below a later patch of other code stays and does nothing."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def guarded(self, target: str, act: Callable[..., object] | None, *arguments: Any) -> Any:
        """Call a function of stepprof; log its first exception, and do not call it again for this target."""
        if act is None or not self.active or target in self._failed:
            return None
        try:
            return act(*arguments)
        except ours(Exception) as error:  # the framework must not see the exception
            self.fail(target, error)
            return None

    def fail(self, target: str, error: Exception) -> None:
        """Log an exception of stepprof that ends a patch."""
        self._failed.add(target)
        logger.warning(
            "adapter.failed", name=self.adapter, target=target, reason=f"{type(error).__name__}: {error}"
        )

    def _replace(self, target: str, make: Callable[[Any, int], Any]) -> None:
        """Replace a target by another function; `make` gets the original and how many arguments bind it."""
        parent, attribute, original = _resolve(target)
        function = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
        if getattr(function, _MARK, None) == self.adapter:
            return
        bound = int(isinstance(parent, type) and not isinstance(original, staticmethod))
        made = functools.update_wrapper(make(function, bound), function)
        setattr(made, _MARK, self.adapter)
        patch = made if function is original else type(original)(made)
        inherited = isinstance(parent, type) and attribute not in vars(parent)
        setattr(parent, attribute, patch)
        self._undo.append(lambda: _restore(parent, attribute, patch, original, inherited=inherited))

    def _around(
        self, target: str, function: Any, bound: int, before: Before | None, after: After | None
    ) -> Callable[..., Any]:
        """Return a function of the same kind: plain, a coroutine function or a generator function."""

        def enter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self.guarded(target, before, args[0] if bound and args else None, args[bound:], kwargs)

        def leave(token: Any, error: BaseException | None) -> None:
            self.guarded(target, after, token, error)

        if inspect.iscoroutinefunction(function):
            return _around_coroutine(function, enter, leave)
        if inspect.isgeneratorfunction(function):
            return _around_generator(function, enter, leave)
        return _around_call(function, enter, leave)


class _Block(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """A context manager of the framework that calls `before` and `after` around its block."""

    def __init__(self, block: Any, enter: Callable[[], Any], leave: Callable[..., None]) -> None:
        super().__init__(block)
        self._self_enter = enter
        self._self_leave = leave
        self._self_token: Any = None

    def __enter__(self) -> Any:
        token = self._self_token = self._self_enter()
        try:
            return self.__wrapped__.__enter__()
        except BaseException as error:
            self._self_leave(token, error)
            raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            return self.__wrapped__.__exit__(kind, error, traceback)
        finally:
            self._self_leave(self._self_token, error)

    async def __aenter__(self) -> Any:
        token = self._self_token = self._self_enter()
        try:
            return await self.__wrapped__.__aenter__()
        except BaseException as error:
            self._self_leave(token, error)
            raise

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        try:
            return await self.__wrapped__.__aexit__(kind, error, traceback)
        finally:
            self._self_leave(self._self_token, error)


def _around_call(function: Any, enter: Callable[..., Any], leave: Callable[..., None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        token = enter(args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            leave(token, error)
            raise
        leave(token, None)
        return result

    return call


def _only_if_kept(target: str, function: Any, patched: Any) -> Callable[..., Any]:
    """Return a function that calls the original alone while no timer is recorded.

    It costs one more Python call. Its arguments are fixed, because `*args, **kwargs` would double that cost.
    """

    def enter(self: Any) -> Any:
        return (patched if timers.busy else function)(self)

    def leave(self: Any, kind: Any, error: Any, traceback: Any) -> Any:
        return (patched if timers.busy else function)(self, kind, error, traceback)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (patched if timers.busy else function)(*args, **kwargs)

    of_blocks: dict[str, Callable[..., Any]] = {"__enter__": enter, "__exit__": leave}
    return of_blocks.get(target.rpartition(".")[2], call)


def _around_coroutine(
    function: Any, enter: Callable[..., Any], leave: Callable[..., None]
) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        token = enter(args, kwargs)
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            leave(token, error)
            raise
        leave(token, None)
        return result

    return call


def _around_generator(
    function: Any, enter: Callable[..., Any], leave: Callable[..., None]
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        token = enter(args, kwargs)
        try:
            result = yield from function(*args, **kwargs)
        except BaseException as error:
            leave(token, error)
            raise
        leave(token, None)
        return result

    return call


def look_up(need: str) -> Any:
    """Return the object that ``module:dotted.name`` names.

    Raises:
        ImportError: there is no such module.
        AttributeError: it has no such name.
    """
    module, _, name = need.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found


def _resolve(target: str) -> tuple[Any, str, Any]:
    """Return the owner of a target, its name there, and the object as it is stored: a method unbound."""
    module, _, name = target.partition(":")
    owner, _, attribute = name.rpartition(".")
    parent = look_up(f"{module}:{owner}")
    original = inspect.getattr_static(parent, attribute)
    return parent, attribute, original


def _restore(parent: Any, attribute: str, patch: object, original: object, *, inherited: bool) -> None:
    if vars(parent).get(attribute) is not patch:
        return  # other code has patched it since
    if inherited:
        delattr(parent, attribute)
    else:
        setattr(parent, attribute, original)
