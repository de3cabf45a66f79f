"""Patches of a framework that never change what it does.

An exception of the original function passes through. An exception of stepprof is logged once and
ends that patch; the original still runs exactly once. All patches can be undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import wrapt

from stepprof.integrations.names import look_up
from stepprof.log import logger

__all__ = ["After", "Before", "Patches"]

Before = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]
"""Called with the instance, the positional and the keyword arguments; returns a token for `After`."""
After = Callable[[Any, BaseException | None], None]
"""Called with the token and the exception of the original; None: it returned."""


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

    def around(self, target: str, before: Before | None = None, after: After | None = None) -> None:
        """Call `before` and `after` around each call of a function or method, also of a coroutine function.

        Args:
            target: ``module:Class.method`` or ``module:function``.
            before: runs before the original.
            after: runs after it, also if it raised.
        """
        parent, attribute, original = _resolve(target)
        if getattr(original, "_self_stepprof", None) == self.adapter:
            return
        plain = original.__func__ if isinstance(original, staticmethod | classmethod) else original
        make = self._around_coroutine if inspect.iscoroutinefunction(plain) else self._around
        wrapper: Any = wrapt.FunctionWrapper(original, make(target, before, after))
        wrapper._self_stepprof = self.adapter
        inherited = isinstance(parent, type) and attribute not in vars(parent)
        setattr(parent, attribute, wrapper)
        self._undo.append(lambda: _restore(parent, attribute, wrapper, original, inherited=inherited))

    def append(self, target: str, value: object) -> None:
        """Append a value to a list of the framework.

        Args:
            target: ``module:LIST``.
            value: what is appended, unless it is there already.
        """
        values: list[object] = look_up(target)
        if value not in values:
            values.append(value)
            self._undo.append(lambda: values.remove(value) if value in values else None)

    def undo(self) -> None:
        """Take every patch back. A patch below a later patch of other code stays and does nothing."""
        self.active = False
        while self._undo:
            self._undo.pop()()

    def guarded(self, target: str, act: Callable[..., object] | None, *arguments: Any) -> Any:
        """Call a function of stepprof; log its first exception, and do not call it again for this target."""
        if act is None or not self.active or target in self._failed:
            return None
        try:
            return act(*arguments)
        except Exception as error:  # noqa: BLE001 - the framework must not see it
            self._failed.add(target)
            logger.warning(
                "adapter.failed", name=self.adapter, target=target, reason=f"{type(error).__name__}: {error}"
            )
            return None

    def _around(self, target: str, before: Before | None, after: After | None) -> Callable[..., Any]:
        def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            token = self.guarded(target, before, instance, args, kwargs)
            try:
                result = wrapped(*args, **kwargs)
            except BaseException as error:
                self.guarded(target, after, token, error)
                raise
            self.guarded(target, after, token, None)
            return result

        return call

    def _around_coroutine(
        self, target: str, before: Before | None, after: After | None
    ) -> Callable[..., Any]:
        async def call(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            token = self.guarded(target, before, instance, args, kwargs)
            try:
                result = await wrapped(*args, **kwargs)
            except BaseException as error:
                self.guarded(target, after, token, error)
                raise
            self.guarded(target, after, token, None)
            return result

        return call


def _resolve(target: str) -> tuple[Any, str, Any]:
    """Return the owner of a target, its name there, and the object as it is stored: a method unbound."""
    module, _, name = target.partition(":")
    owner, _, attribute = name.rpartition(".")
    parent = look_up(f"{module}:{owner}")
    original = inspect.getattr_static(parent, attribute)
    return parent, attribute, original


def _restore(parent: Any, attribute: str, wrapper: object, original: object, *, inherited: bool) -> None:
    if vars(parent).get(attribute) is not wrapper:
        return  # other code has patched it since
    if inherited:
        delattr(parent, attribute)
    else:
        setattr(parent, attribute, original)
