"""``profile_step``: the window of a step, as a block, an async block, start/stop and a decorator; ``tick``, ``state`` and ``current_step``.

A window that is not selected costs a comparison, a context variable and its span. The session
decides which windows are selected. This module enters and exits windows in every form, and makes
sure that each exits once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.context import cell
from stepprof.instrument.decorators import decorate, refuse_undecorable
from stepprof.instrument.scope import (
    SURE_BITS,
    UNSEEN,
    WAKE_AT,
    Scope,
    current_scope,
    holding,
    last_open,
    newest,
    set_scope,
)
from stepprof.instrument.state import State
from stepprof.interrupts import ours

if TYPE_CHECKING:
    from stepprof.instrument.ports import EarlyStart, OpenWindow, Session, WindowEngines

NOT_SELECTED: Literal[False] = False
"""Marks a missing ticket."""

F = TypeVar("F", bound=Callable[..., Any])


class StepWindow(Scope):
    """One window, as a block or as a decorator. Made by `profile_step`; reused only after it has ended."""

    __slots__ = ("_after", "_key", "_step", "_version")

    _step: Any
    _version: int | str | None
    _key: object
    """What the session keeps of it if `start` opened it."""
    _after: OpenWindow | Literal[False] | None
    """What the exit has to do: the ticket of a selected window; NOT_SELECTED; None: the next step is not selected either."""

    def __enter__(self, _early: EarlyStart | None = None) -> StepWindow:
        recorder = cell.recorder
        if recorder is None:
            return self
        # read before they are called, here and below: CPython 3.11 does not specialise a method call of a slot
        is_compiling = recorder.is_compiling
        if is_compiling():
            return self
        session = cell.session
        if session is None:
            return self
        step, role = self._step, self.role
        if step.__class__ is not int or step >> SURE_BITS:  # negative, or perhaps too large
            step = session.refusals.step_number(step, session.last_step)
        if step is None or self._start or not (role is None or role.__class__ is str):
            if self._start or step is None or not isinstance(role, str):
                session.refusals.refuse_window(step, role, already_open=bool(self._start))
                return self
            self.role = role = str.__str__(role)
        session.last_step = self.number = step
        quiet = session.quiet.get(role)
        if quiet is not None and quiet[0] <= step < quiet[1] and session.calm:
            self._after = after = None
            if not recorder.keep and recorder.hook is None:
                self._before = newest.window
                newest.window = self  # for `current_step`
                self._start = UNSEEN
                return self
        else:
            ticket: OpenWindow | None = session.enter(step, role, self._version, _early)
            self._after = after = NOT_SELECTED if ticket is None else ticket
            recorder = cell.recorder or recorder  # the first window may have started the session
        try:
            self._recorder = recorder
            self._thread = thread = recorder.thread.id
            task_loop = recorder.task_loop
            loop = task_loop()
            self._task = task = None if loop is None else id(recorder.current_task(loop))
            outer = current_scope()
            if outer is not None and not outer._start:
                if outer._outer is None and outer._thread == thread and outer._task == task:
                    outer = None  # the window before this one
                else:
                    outer = holding(outer, recorder, thread, task)
            self._outer = outer
            self._bound = None if outer is None else outer._bound
            self._before = newest.window
            newest.window = self
            set_scope(self)
            self._start = start = perf_counter_ns()
            if after:
                after.begin(start)
            return self
        except BaseException as interrupt:  # a window whose enter raises has no exit
            self._start = 0
            if newest.window is self:
                newest.window = self._before
            self._abandon(self._after, interrupt)
            raise

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        start = self._start
        if not start:
            return
        self._start = 0
        after = self._after
        try:
            end = perf_counter_ns()
            if after:
                after.end(end, moved=True)
            before = self._before
            if before is not None:
                self._before = before = last_open(before)
            if newest.window is self:
                newest.window = before
            if start is UNSEEN:
                return
            outer = self._outer
            if outer is not None:
                self._outer = outer = holding(outer, cell.recorder, self._thread, self._task)
            if current_scope() is self:  # a task that begins after the window inherits the enclosing scope
                set_scope(outer)
            recorder = cell.recorder
            if recorder is None:
                return
            role = self.role
            span = (
                role or "step",
                "window",
                start,
                end,
                self._thread,
                self._task,
                self,
                None,
                exc_type is not None,
            )
            if recorder.keep:
                pending = recorder.pending
                pending.append(span)
                if len(pending) > WAKE_AT:
                    recorder.relieve()
            hook = recorder.hook
            if hook is not None:
                hook.exit(None, span)
            if after is not None:
                self._after = None
                self._leave(after, exc)
        except BaseException as interrupt:
            self._abandon(after, interrupt)
            raise

    @staticmethod
    def _abandon(after: OpenWindow | Literal[False] | None, interrupt: BaseException) -> None:
        """Clean up after an interrupt in the enter or exit: nothing of the window must stay open for ever."""
        session = cell.session
        if session is not None and after:
            session.abandon(after, interrupt)

    def _leave(self, after: OpenWindow | Literal[False], error: BaseException | None) -> None:
        """End a window that is selected, or that may come right before a selected one."""
        session = cell.session
        step = self.number
        if session is None or step is None:
            return
        session.left()
        if after:
            session.exit(after, error)
        session.approach(step + 1, self.role)

    async def __aenter__(self) -> StepWindow:
        session = cell.session
        if session is None or self._start or session.is_quiet(self._step, self.role):
            return self.__enter__()
        early = await session.prepare_enter(self._step, self.role, self._version)
        try:
            return self.__enter__(early)
        finally:
            if early is not None:
                early.cancel("its window was refused")

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        after = self._after if self._start > UNSEEN else None
        engines = _engines_to_await(after) if after else None
        self.__exit__(exc_type, exc, traceback)
        if engines is not None:
            await engines.stopped()

    def _replaced(self, session: Session[Any, Any]) -> list[tuple[StepWindow, Any]]:
        """Return the windows that were left open and end with the start of this one, each with the reason."""
        role = self.role
        if self._start or not (role is None or isinstance(role, str)):
            return []
        return session.refusals.started.begin(self, role)

    def start(self) -> StepWindow:
        """Enter the window without a block; `stop` exits it."""
        session = _session()
        if session is not None:
            for window, reason in self._replaced(session):
                window.stop(reason)
        return self.__enter__()

    def stop(self, error: BaseException | None = None) -> None:
        """Exit the window. ``error`` is the body's exception, for the manifest. A second stop, or
        one without a start, is refused."""
        session = _session()
        if session is not None:
            if not self._start:
                session.refusals.refuse("stop", "this window is not open")
                return
            session.refusals.started.forget(self)
        self.__exit__(None if error is None else type(error), error, None)

    async def astart(self) -> StepWindow:
        """Enter as `start` does, in a coroutine: wait for engines, and for another thread's stop,
        without blocking the event loop.
        """
        session = _session()
        if session is not None:
            for window, reason in self._replaced(session):
                await window.astop(reason)
        return await self.__aenter__()

    async def astop(self, error: BaseException | None = None) -> None:
        """Exit as `stop` does, in a coroutine: wait for the engines without blocking the event loop."""
        after = self._after if self._start > UNSEEN else None
        engines = _engines_to_await(after) if after else None
        self.stop(error)
        if engines is not None:
            await engines.stopped()

    def __call__(self, function: F) -> F:
        """Decorate a function: each call of it is a window."""
        refuse_undecorable(function, "profile_step(…)")
        find = _step_finder(self._step, function)
        role, version = self.role, self._version

        def window(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepWindow:
            return profile_step(find(args, kwargs), role, version=version)

        return decorate(function, lane=window)


def profile_step(
    step: Any = None, role: str | None = None, *, version: int | str | None = None
) -> StepWindow:
    """Mark the window of one step, or of one role's part of it. The configuration selects whether it is recorded; a session keeps its span in any case.

    Use it as a block, an async block, a decorator (def and async def), or with `start` and `stop` (`astart`, `astop` in coroutines)
    in callbacks. A window that was started and not stopped is closed by the next `start` of its role in the same thread or task.

    Args:
        step: the number of the step, as your loop counts. None: the step that was last entered in this process. For a decorator: the
            name of the argument that holds it, or a callable that takes the call's arguments.
        role: the phase of the step: ``rollout``, ``actor``, ``ref``, …. None: the whole step.
        version: the version of the parameters (or whatever else you count), in fully asynchronous training.

    >>> with profile_step(2, role="rollout"):
    ...     pass
    >>> @profile_step(step="global_step", role="actor")
    ... def update(batch, global_step):
    ...     return global_step
    >>> update([], global_step=3)
    3
    """
    # set here, as in `region`: an __init__ would be one more Python call
    window = StepWindow()
    window._step = step
    window.role = role
    window._version = version
    window._start = 0
    return window


def _step_finder(
    step: Any, function: Callable[..., Any]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return a function that finds the step in a call of the decorated function."""
    if callable(step):
        return lambda args, kwargs: _ask(step, args, kwargs)
    if not isinstance(step, str):
        return lambda args, kwargs: step
    inner = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
    parameters = inspect.signature(inner).parameters
    place, default = sys.maxsize, None
    if step in parameters:
        found = parameters[step]
        default = None if found.default is inspect.Parameter.empty else found.default
        if found.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            place = list(parameters).index(step)
    elif all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        name = getattr(inner, "__qualname__", type(inner).__qualname__)
        raise TypeError(
            f'profile_step(step="{step}"): {name} has no such argument; it has: {", ".join(parameters)}'
        )

    def find(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return args[place] if place < len(args) else kwargs.get(step, default)

    return find


def _ask(step: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call the user's callable that returns the step. Its exceptions must not reach the decorated function."""
    try:
        return step(*args, **kwargs)
    except ours(Exception) as error:  # the session reports it, as an invalid step
        return error


def _engines_to_await(ticket: OpenWindow) -> WindowEngines | None:
    """Return the engines that a coroutine awaits after its window; None: none, or the event loop of
    another library, where the exit itself waits.
    """
    recorder = cell.recorder
    if ticket.bracket is None or recorder is None or recorder.running_loop() is None:
        return None
    ticket.awaits_engines = True
    return ticket.bracket


def _session() -> Session[Any, Any] | None:
    """Return the session, unless Dynamo is tracing."""
    recorder = cell.recorder
    return None if recorder is None or recorder.is_compiling() else cell.session


def tick() -> None:
    """Mark a point at which limits and requests can take effect inside a long window.

    >>> tick()
    """
    recorder = cell.recorder
    session = cell.session
    # in this order: a guard on the hook would recompile a model at each recorded step
    if recorder is None or recorder.is_compiling() or recorder.hook is None or session is None:
        return
    session.tick()


def current_step() -> int | None:
    """Return the number of the step that is open here, recorded or not; None outside of every window.

    A region that begins here belongs to this step, however late it ends. It is that of the window, or of the ``bind(step=…)``, around
    this code; of a task that began inside a window, that window's; else that of the window that this process entered last and that is still open. In an
    attached actor the open windows of the driver count too. Unlike ``state().step``, it never names a step that is still to come.

    >>> current_step() is None
    True
    """
    recorder = cell.recorder
    if recorder is None or recorder.is_compiling():
        return None
    where = recorder.where()
    return None if where is None else where.number


def state() -> State:
    """Return what the profiler of this process is doing. ``str()`` of it is one line for a log.

    >>> state().status
    'idle'
    """
    return cell.state
