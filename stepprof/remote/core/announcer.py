"""Announce which windows are open here to sessions in other processes, at each entry and exit.

Each announcement lists all open windows and has a number, so that the next one repairs one that was
lost or overtaken.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepprof.instrument.context import open_windows
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.loop import remote_loop
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineDriver
    from stepprof.remote.engine import Engine

Key = tuple[int, "str | None"]

DIRECT = 64
"""Up to this many listeners, the thread of the training loop sends the announcements itself, at
0.05 to 0.3 ms each, so that no work that it sends next overtakes them. With more listeners only
recorded windows are announced, and wait for it.
"""

GATHER_SECONDS = 0.02
"""How long announcements to more listeners are gathered, so that the exit of one phase and the
entry of the next are one message.
"""


class Announcer:
    """The listeners of one process, and the last announcement to each."""

    def __init__(self) -> None:
        self.listeners: list[tuple[Engine, EngineDriver]] = []
        """The sessions in other processes that receive every window."""
        self._announced: dict[EngineDriver, tuple[Key, ...]] = {}
        self._number = 0
        self._later: dict[EngineDriver, tuple[int, tuple[Key, ...]]] = {}
        self._sending: concurrent.futures.Future[None] | None = None
        """The timer that sends ``_later``."""
        self._lock = threading.RLock()  # a signal handler may interrupt

    def look(self, engines: Iterable[Engine]) -> None:
        """Find the listeners among these attachments, and announce the open windows to new ones."""
        with self._lock:
            self.listeners = [
                (engine, target.driver)
                for engine in engines
                for target in engine.targets
                if target.driver.listens
            ]
            there = {driver for _, driver in self.listeners}
            self._announced = {
                driver: reported for driver, reported in self._announced.items() if driver in there
            }
        self.announce(None)

    def announce(
        self, opening: Key | None, *, is_recorded: bool = False
    ) -> Sequence[concurrent.futures.Future[None]]:
        """Announce to each listener the open windows of its roles, if they have changed.

        Args:
            opening: a window that is about to begin.
            is_recorded: its begin waits for pending announcements.

        Returns:
            The pending announcements.
        """
        if not self.listeners:
            return ()
        with self._lock:
            many = len(self.listeners) > DIRECT
            windows = [] if many and not is_recorded else _open(opening)
            self._number += 1
            for engine, driver in self.listeners:
                # two steps may overlap in different roles: each is announced to the engines of its role
                mine = tuple(key for key in windows if key[1] is None or engine.plays(key[1]))
                if self._announced.get(driver) == mine:
                    continue
                self._announced[driver] = mine
                if many or not driver.announce_now(self._number, mine):
                    self._later[driver] = self._number, mine
            if self._later and self._sending is None:
                self._sending = remote_loop().submit(self._send(GATHER_SECONDS if many else 0.0))
            return () if self._sending is None else (self._sending,)

    async def _send(self, pause: float) -> None:
        await asyncio.sleep(pause)
        with self._lock:
            later, self._later = self._later, {}
            self._sending = None
        await asyncio.gather(*(_announce(driver, *what) for driver, what in later.items()))


def _open(opening: Key | None) -> list[Key]:
    """Return the open windows, each step and role once, the outermost first."""
    found = [(window.number, window.role) for window in open_windows() if window.number is not None]
    found.reverse()
    return list(dict.fromkeys([*found, opening] if opening is not None else found))


async def _announce(driver: EngineDriver, number: int, windows: Sequence[Key]) -> None:
    try:
        await driver.announce(number, windows)
    except ours(Exception) as error:  # a plug-in may raise anything; the next announcement repairs it
        logger.debug("step.not_announced", name=driver.name, reason=describe_error(error))
