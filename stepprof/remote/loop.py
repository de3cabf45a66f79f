"""Run remote calls: one event loop on one daemon thread, and calls to other loops and threads.

No call of a driver is cancelled: a cancelled call would leave the engine's own state wrong for good. A timeout only ends the waiting.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure

__all__ = [
    "RemoteLoop",
    "awaited",
    "drop_result",
    "in_thread",
    "on_loop",
    "remote_loop",
    "running_loop",
    "waited",
]

T = TypeVar("T")


class RemoteLoop:
    """The event loop of the remote side, on a thread of its own. A daemon: a call that hangs must not keep the process from ending."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stepprof-remote", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - a SystemExit of a driver ends the loop's run; the other engines need it
                logger.warning("remote.interrupted", reason=repr(error))
            else:
                return

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop, soon."""
        self._loop.call_soon_threadsafe(act, *arguments)


_current: RemoteLoop | None = None
_making = threading.Lock()


def remote_loop() -> RemoteLoop:
    """Return the loop of this process, made at its first use; a forked child makes its own."""
    global _current
    with _making:
        if _current is None or _current.pid != os.getpid():
            _current = RemoteLoop()
        return _current


def _forget_in_child() -> None:
    global _current, _making
    _current = None
    _making = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs the caller; None: no coroutine calls."""
    try:
        return asyncio.get_running_loop()
    except ours(RuntimeError):
        return None


def waited(future: concurrent.futures.Future[T] | None, timeout: float) -> bool:
    """Block the calling thread until work on the loop has ended; return whether it has within ``timeout`` seconds."""
    return future is None or bool(concurrent.futures.wait([future], timeout=timeout).done)


async def awaited(future: concurrent.futures.Future[T] | None, timeout: float) -> bool:
    """Wait as `waited`, in a coroutine. If the caller is cancelled, the work continues."""
    if future is None:
        return True
    done, _ = await asyncio.wait([asyncio.wrap_future(future)], timeout=timeout)
    return bool(done)


def drop_result(task: asyncio.Future[Any]) -> None:
    """Read the result of a task that no caller awaits any longer, so that asyncio does not log its exception."""
    if not task.cancelled():
        task.exception()


async def on_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], Awaitable[T]]) -> T:
    """Await something on another loop of this process, such as the one that an engine lives on.

    Args:
        loop: the loop on which it is made and awaited; it must be running, on any thread.
        make: called there; returns the awaitable.

    Raises:
        EngineFailure: that loop is closed or not running, so the call would never be made.
    """
    if loop is asyncio.get_running_loop():
        return await make()
    if loop.is_closed() or not loop.is_running():
        raise EngineFailure(
            f"the event loop that the engine lives on is {'closed' if loop.is_closed() else 'not running'}: nothing can be sent to it",
            "unreachable",
        )

    async def there() -> T:
        return await make()

    return await asyncio.shield(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop)))


async def in_thread(act: Callable[..., T], *arguments: object) -> T:
    """Run a blocking call on its own daemon thread and await it.

    It uses no pool: the interpreter joins the threads of an executor at exit, and one hung call would block that.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = act(*arguments)
        except BaseException as error:  # noqa: BLE001 - passed to the awaiting caller
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except ours(RuntimeError):  # the loop has ended, and with it every caller that waited
            return

    threading.Thread(target=run, name="stepprof-call", daemon=True).start()
    return await asyncio.shield(done)
