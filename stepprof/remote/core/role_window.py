"""Pass a role's window inside a step's window to ranks in other processes, so that their regions belong to the role."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineDriver, EngineWindow
    from stepprof.run.model import Window


def is_inner(window: Window, outer: Window) -> bool:
    """Return whether a window with a role is inside one of the same step that has none."""
    return window.step == outer.step and outer.role is None and window.role is not None


class Inner:
    """One rank's part of an inner window. Made on stepprof's own loop; the rank is asked to enter it at once.

    Args:
        driver: speaks to the rank.
        window: the inner window.
    """

    def __init__(self, driver: EngineDriver, window: EngineWindow) -> None:
        self._driver = driver
        self._window = window
        self.entering = asyncio.ensure_future(self._ask("enter"))

    async def exit(self) -> None:
        """Have the rank leave it. Raises nothing."""
        await asyncio.wait({self.entering})
        await self._ask("exit")

    async def _ask(self, verb: str) -> None:
        act = self._driver.enter if verb == "enter" else self._driver.exit
        try:
            await act(self._window)
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; the rank's capture continues
            step, role = self._window.window.step, self._window.window.role
            logger.warning(
                "actor.role_failed",
                verb=verb,
                name=self._driver.name,
                step=step,
                role=role,
                reason=describe_error(error),
            )


async def entered(windows: Sequence[Inner], timeout: float) -> None:
    """Wait until the ranks have entered, ``timeout`` seconds at most."""
    if windows:
        await asyncio.wait([each.entering for each in windows], timeout=max(timeout, 0.0))


async def exit_all(windows: Sequence[Inner], timeout: float) -> None:
    """Have the ranks leave, and wait ``timeout`` seconds at most."""
    if windows:
        await asyncio.wait([asyncio.ensure_future(each.exit()) for each in windows], timeout=timeout)
