"""One engine's part of one window: how far it has come, who waits for it, and how long windows keep it open.

It holds the window's entry in the manifest and knows no driver: what is asked of the engine, and when, is `stepprof.remote.core.engine_target`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprof.remote.core.event import Gate
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.run.model import Outcome
    from stepprof.run.schema import EngineEntry

__all__ = ["Recording"]


class Recording:
    """One engine's part of one window.

    Args:
        entry: its entry in the manifest, kept up to date.
        save: has the entry written, soon.
        step: whose windows it ends with.
    """

    def __init__(self, entry: EngineEntry, save: Callable[[], object], step: int) -> None:
        self.entry = entry
        self.save = save
        """Has the entry written, soon."""
        self.step = step
        self.capped_by: str | None = None
        """What ended it before its window did."""
        self.window: EngineWindow | None = None
        """Its folder, once there is one."""
        self.stop = asyncio.Event()
        """The window is over, or nobody waits for the start any longer."""
        self.started = Gate()
        """Open when the start has succeeded or failed."""
        self.finished = Gate()
        """Open when nothing is left to do."""
        self.late: str | None = None
        """Why what was captured is not all of the window."""
        self.sent = False
        """The start has left: a stop is owed."""
        self.answered_at: float | None = None
        """When the start was answered well, by the loop's clock."""
        self.refused = False
        """The start has failed."""
        self.begun_ns: int | None = None
        """When its window began without it, since the Unix epoch."""
        self.ended_ns: int | None = None
        """When its last window ended: a start that is answered later is stopped later."""
        self.closing = False
        """The window that opened it is going out, or was given up while it came in."""
        self.given_up = False
        """A bound is over: nobody waits for it any longer, and what still comes is worked off."""
        self.task: asyncio.Task[None] | None = None
        self._open = 1
        self._joined: list[tuple[EngineEntry, Callable[[], object]]] = []

    @property
    def answered(self) -> bool:
        """Whether the start has been answered well."""
        return self.answered_at is not None

    @property
    def ending(self) -> bool:
        """Whether nothing keeps it open."""
        return self.stop.is_set() or (self.closing and self._open <= 1)

    @property
    def running(self) -> bool:
        """Whether another window may join it."""
        return self.answered and not self.ending

    @property
    def awaited(self) -> Gate:
        """What comes before another window can join it, or have the engine to itself."""
        return self.finished if self.ending else self.started

    @property
    def unanswered(self) -> str:
        """Which call of it is under way."""
        if self.refused:
            return f"its start of step {self.step} has failed, and the stop that this needs has not been answered"
        return f"its {'stop' if self.answered else 'start'} of step {self.step} has not been answered"

    def refuse(self) -> None:
        """The start has failed: no window waits for it; a stop may be under way before the engine is free."""
        self.refused = True
        self.stop.set()
        self.started.open()

    def join(self, step: int, entry: EngineEntry, save: Callable[[], object]) -> None:
        """Another window came in while it runs; one of the same step keeps it open. `save` has its entry written."""
        self._joined.append((entry, save))
        self._open += step == self.step

    def leave(self) -> None:
        """A window of its step went out; the last one takes the capture with it."""
        self._open -= 1
        if self._open <= 0:
            self.ended_ns = time.time_ns()
            self.stop.set()

    def cap(self, by: str) -> None:
        """End it before its window does."""
        if not self.stop.is_set():
            self.capped_by = by
            self.stop.set()

    def fail(self, status: Outcome, error: str, code: ReasonCode, health: str) -> None:
        """It came to nothing; every window that relied on it says so."""
        for entry in (self.entry, *(entry for entry, _ in self._joined)):
            entry.health = health
        self.disown(status, error, code)

    def disown(self, status: Outcome, error: str, code: ReasonCode) -> None:
        """The same of an engine that is well."""
        for entry, save in self._joined:
            entry.update(
                status=status,
                pending=False,
                reason_code=code,
                error=error,
                stop_seconds=self.entry.stop_seconds,
            )
            save()
        self.tell(status, error, code)

    def keep(self, artifacts: list[dict[str, object]], lacking: str | None) -> None:
        """Note the files of the window, and what of it is not in them."""
        if lacking:
            self.tell("partial", lacking, ReasonCode.INCOMPLETE, artifacts=artifacts)
        else:
            self.tell("complete", artifacts=artifacts)

    def tell(
        self,
        status: Outcome,
        error: str | None = None,
        code: ReasonCode | None = None,
        *,
        pending: bool = False,
        **fields: object,
    ) -> None:
        """Note an outcome, and have it written; one that is `pending` will be replaced, if this process lives."""
        self.entry.update(status=status, pending=pending, reason_code=code, error=error, **fields)
        self.save()

    def settle(self) -> None:
        """Nobody has to wait any longer."""
        self.started.open()
        self.finished.open()
