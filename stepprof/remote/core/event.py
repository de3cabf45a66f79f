"""One-shot event; each waiter has its own timeout.

It creates no future for each waiter, because a window waits for a thousand engines at once.
Everything runs on stepprof's own loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Gate:
    """A gate that is closed until it is opened for good."""

    __slots__ = ("_then", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._then: list[Callable[[], object]] = []

    def open(self) -> None:
        """Release all present and future waiters. Opening it twice does nothing."""
        if not self.is_open:
            self.is_open = True
            waiting, self._then = self._then, []
            for act in waiting:
                act()

    def then(self, act: Callable[[], object]) -> None:
        """Call a function when the gate opens."""
        self._then.append(act)

    def forget(self, act: Callable[[], object]) -> None:
        """Remove a function that was given to `then`."""
        if act in self._then:
            self._then.remove(act)


async def passed(gates: Iterable[Gate], timeout: float | None = None) -> bool:
    """Wait until all gates are open; return False after ``timeout`` seconds."""
    closed = [gate for gate in gates if not gate.is_open]
    if not closed:
        return True
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()
    left = len(closed)

    def settle(answer: bool) -> None:
        if not done.done():
            done.set_result(answer)

    def one_more() -> None:
        nonlocal left
        left -= 1
        if not left:
            settle(True)

    for gate in closed:
        gate.then(one_more)
    bound = None if timeout is None else loop.call_later(max(timeout, 0.0), settle, False)
    try:
        return await done
    finally:
        if bound is not None:
            bound.cancel()
        if left:
            for gate in closed:
                gate.forget(one_more)
