"""A session that begins with its first window: `init` in the main module, while that is imported for a child of multiprocessing.

With spawn and forkserver each child imports the main module again. Workers of a pool or a loader open no window, and get no
run. A rank that was started in this way opens one, and records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stepprof.errors import StepprofError
from stepprof.instrument.context import cell
from stepprof.instrument.span_recorder import Recorder
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.misuse import Refusals

if TYPE_CHECKING:
    from stepprof.recording.session import Session
    from stepprof.recording.window_handle import EarlyEngines, Ticket


class Deferred:
    """Stands for the session of this process until its first window.

    Args:
        open_session: starts the session.
        strict: raise what would otherwise be logged.
    """

    path = None
    calm = True
    last_step: int | None = None
    quiet: Mapping[str | None, tuple[float, float]] = {}

    def __init__(self, open_session: Callable[[], Session], *, strict: bool) -> None:
        self.recorder = Recorder(keep=False)
        self.refusals = Refusals(lambda: 0, strict=strict)
        self._open_session = open_session
        self._opening = threading.Lock()
        cell.session, cell.recorder = self, self.recorder

    def _begin(self) -> Any:
        """Start the session, and return it; None: it could not be started, which is logged."""
        with self._opening:
            if cell.session is self:
                cell.clear()
                try:
                    self._open_session()
                except ours(StepprofError, OSError) as error:  # `init` raised it in the parent, or could not
                    logger.warning("init.failed_late", reason=str(error))
                session = cell.session
                if session is not None:  # its first window was noted here before it was entered
                    session.refusals.started = self.refusals.started
            return cell.session

    def enter(
        self, step: int, role: str | None, version: int | str | None, early: EarlyEngines | None
    ) -> Ticket | None:
        """Start the session, and enter the window there."""
        session = self._begin()
        if session is None:
            return None
        session.last_step = step
        ticket: Ticket | None = session.enter(step, role, version, early)
        return ticket

    async def prepare_enter(
        self, step: object, role: object, version: int | str | None
    ) -> EarlyEngines | None:
        """Start the session, and prepare the window there."""
        session = self._begin()
        early: EarlyEngines | None = (
            None if session is None else await session.prepare_enter(step, role, version)
        )
        return early

    def is_quiet(self, step: object, role: object) -> bool:
        """Return False: the next window starts the session."""
        return False

    def left(self) -> None:
        """Do nothing: no window was entered here, here and below."""

    def exit(self, ticket: Ticket, error: BaseException | None) -> None:
        """Do nothing."""

    def abandon(self, ticket: Ticket, interrupt: BaseException) -> None:
        """Do nothing."""

    def approach(self, step: int, role: str | None) -> None:
        """Do nothing."""

    def tick(self) -> None:
        """Do nothing."""


def forget_deferred() -> None:
    """Drop a session that has not begun."""
    if isinstance(cell.session, Deferred):
        cell.clear()
