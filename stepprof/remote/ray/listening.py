"""Announce to one actor which windows its driver has open, by calls whose answers are not awaited.

The first call makes the session there, which takes a second or more. Later calls are sent at once
by the thread of the training loop. If a call fails because the actor was restarted, the next one is
a first call again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure
from stepprof.remote.loop import remote_loop
from stepprof.run.manifest_writer import describe_error

MOST_PENDING = 64
"""Maximum number of calls that wait in a busy actor; then none is sent until it has answered. Each lists all open windows."""

RETRY_SECONDS = 1.0
"""Seconds before a failed session is tried again; doubled each time."""

Windows = Sequence[tuple[int, "str | None"]]


class Listening:
    """The announcements to one actor.

    Args:
        name: the name of the actor in the log.
        join: makes the session there.
        announce_windows: sends the open windows; returns the future of the actor's `Answer`.
        is_recorded: the actor is a rank, so that a recorded step reports why it cannot take part.
    """

    def __init__(
        self,
        name: str,
        join: Callable[[], Awaitable[None]],
        announce_windows: Callable[[int, Windows], concurrent.futures.Future[Any]],
        *,
        is_recorded: bool = False,
    ) -> None:
        self._name = name
        self._is_recorded = is_recorded
        self._join = join
        self._announce_windows = announce_windows
        self._joined = False
        self._joining = asyncio.Lock()
        self._latest: tuple[int, Windows] = 0, ()
        self._sent = 0
        """The number of the latest announcement that was sent."""
        self._pending = 0
        self._counting = threading.Lock()
        self._wait_seconds = RETRY_SECONDS
        self._again_at = 0.0

    def announce_now(self, number: int, windows: Windows) -> bool:
        """Send an announcement on the calling thread; return whether nothing else has to be done."""
        self._latest = number, windows
        if not self._joined:
            return False
        if self._pending < MOST_PENDING:
            self._send(number, windows)
        return True

    async def announce(self, number: int, windows: Windows) -> None:
        """Send an announcement from stepprof's loop; make the session first if there is none. Raises nothing."""
        self._latest = max(self._latest, (number, windows), key=lambda each: each[0])
        async with self._joining:
            if self._joined:
                self._catch_up()
            elif real_time.monotonic() >= self._again_at:
                await self._try_to_join()

    async def _try_to_join(self) -> None:
        try:
            await self._join()
        except ours(Exception) as error:  # whatever Ray raises, the job continues
            if self._wait_seconds == RETRY_SECONDS and not self._is_reported_later(error):
                logger.warning("actor.spans_missing", name=self._name, reason=describe_error(error))
            self._again_at = real_time.monotonic() + self._wait_seconds
            self._wait_seconds *= 2
            return
        self._joined = True
        self._catch_up()  # with the windows that are open by now

    def _is_reported_later(self, error: Exception) -> bool:
        """Return whether the first recorded step fails for the same reason and reports it: one line is enough."""
        return self._is_recorded and isinstance(error, EngineFailure) and error.health == "unconfigured"

    def reset(self) -> None:
        """Note that the session there has ended, or will soon."""
        self._joined = False

    def _catch_up(self) -> None:
        """Send the announcements that were made meanwhile."""
        if self._joined and self._sent < self._latest[0] and self._pending < MOST_PENDING:
            self._send(*self._latest)

    def _send(self, number: int, windows: Windows) -> None:
        self._sent = number
        self._count(1)
        try:
            self._announce_windows(number, windows).add_done_callback(self._answered)
        except ours(Exception):  # Ray has ended, or refuses the call: the next one makes the session again
            self._count(-1)
            self._joined = False

    def _count(self, change: int) -> int:
        with self._counting:
            self._pending += change
            return self._pending

    def _answered(self, answer: concurrent.futures.Future[Any]) -> None:
        """Take the answer of a call, on a thread of Ray."""
        left = self._count(-1)
        if answer.cancelled() or answer.exception() is not None or answer.result().value is not True:
            self._joined = False
        elif not left and self._sent < self._latest[0]:
            remote_loop().call(self._catch_up)
