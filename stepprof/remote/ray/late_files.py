"""The files that an engine in an actor leaves some time after its stop, from both sides of the call.

The driver process polls them, because no call may wait in an actor that generates.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from stepprof.backends.base import ExportError
from stepprof.backends.nsys.reports import ReportLost
from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.remote.base import Stopped
from stepprof.remote.loop import remote_loop
from stepprof.remote.ray.inside.messages import Collected, Key, key_of
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow, Later

_PAUSE_SECONDS = (0.1, 2.0)
"""Seconds between two polls, at first and at most: each takes a turn of the actor."""
_SHARE = 0.75


class ActorsLater:
    """Polls an actor for its pending report.

    Args:
        ask: polls it, with the remaining seconds if the end is near; None: nothing yet.
        bring: moves the report to the run.
    """

    def __init__(
        self,
        ask: Callable[[float | None], Awaitable[Collected | None]],
        bring: Callable[[Stopped], Awaitable[Stopped]],
    ) -> None:
        self._ask = ask
        self._bring = bring
        self._until: float | None = None
        self._logged = False
        self._hurried = asyncio.Event()

    async def wait(self) -> Stopped:
        """Return the result. Raises EngineFailure, or ExportError as it was raised in the actor."""
        pause, most = _PAUSE_SECONDS
        while (collected := await self._ask(self._share())) is None:
            left = self._left()
            if left is not None and left <= 0:
                raise ReportLost(
                    "the run ended before the actor returned its report; it stays where nsys writes it"
                )
            hurried = asyncio.ensure_future(self._hurried.wait())
            await asyncio.wait({hurried}, timeout=pause if left is None else min(pause, left, 0.2))
            hurried.cancel()
            self._hurried.clear()
            pause = min(1.5 * pause, most)
        if collected.outcome is not None:
            failure = ExportError(collected.error or "")
            failure.outcome = collected.outcome
            raise failure
        return await self._bring(collected.stopped)

    def hurry(self, until: float) -> None:
        """Limit the wait to this time."""
        self._until = until
        self._hurried.set()

    def _share(self) -> float | None:
        """Send the actor the remaining time once, when the end is near: less than what is left,
        because its answer has to travel back.
        """
        left = self._left()
        if left is None or self._logged:
            return None
        self._logged = True
        return _SHARE * left

    def _left(self) -> float | None:
        return None if self._until is None else max(self._until - real_time.monotonic(), 0.0)


class PendingReports:
    """In the actor: the pending reports of one engine, by window."""

    def __init__(self) -> None:
        self._waiting: dict[Key, tuple[Later, concurrent.futures.Future[Stopped]]] = {}

    def begin(self, window: EngineWindow, later: Later) -> None:
        """Wait for the report of a window."""
        self._waiting[key_of(window)] = later, remote_loop().submit(later.wait())

    def collect(self, window: EngineWindow, seconds: float | None) -> Collected | None:
        """Return the result of a window; None: there is none yet. ``seconds`` remain, if the end of the run is near."""
        waiting = self._waiting.get(key_of(window))
        if waiting is None:
            return Collected(
                outcome="lost", error="the actor has no pending report: its process was replaced"
            )
        later, future = waiting
        if not future.done():
            if seconds is not None:
                remote_loop().call(later.hurry, real_time.monotonic() + seconds)
            return None
        del self._waiting[key_of(window)]
        try:
            return Collected(future.result())
        except ExportError as error:
            return Collected(outcome=error.outcome, error=str(error))
        except ours(Exception) as error:  # a plug-in may raise anything; the driver process reports it
            return Collected(outcome="lost", error=describe_error(error))
