"""The state of one attached engine: state machine, health, clock, and the windows that it is armed
for and records.

`stepprof.remote.core.engine_target` makes the calls, and notes each answer here. Everything runs on
stepprof's own event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.base import EngineFailure
from stepprof.run.manifest_writer import describe_error
from stepprof.state_machine import EngineTargetMachine

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from stepprof.remote.base import Clock, EngineDriver, EngineWindow, Health
    from stepprof.remote.core.change_log import ChangeLog
    from stepprof.remote.core.engine_capture import Recording
    from stepprof.run.model import Window


class Observer(Protocol):
    """Receives changes of an engine: the registry."""

    changes: ChangeLog
    """The log that publishes changes of the state and the health."""

    def unused(self, target: Any, window: EngineWindow) -> None:
        """Remove an unused folder, unless the engine has started to use it."""


class EngineState:
    """The state of one attached engine."""

    def __init__(self, driver: EngineDriver, role: str, replica: int, observer: Observer) -> None:
        self.driver = driver
        self.role = role
        self.replica = replica
        self.label = f"{role}/{replica}"
        self.machine = EngineTargetMachine(self.label, observer.changes.add_transition)
        self.health: Health = "ok"
        self.clock: Clock | None = None
        self.armed: EngineWindow | None = None
        """The window that it is armed for."""
        self.recording: Recording | None = None
        """The capture of its current start, recording or stop."""
        self.detached = False
        self._arming: list[EngineWindow] = []
        self._observer = observer
        self._recovering: asyncio.Task[None] | None = None
        """A reference, so that the waiting task is not collected."""

    @property
    def boot_id(self) -> str | None:
        """The boot of the engine's machine, if a comparison of clocks has found it."""
        clock = self.clock
        return clock.boot_id if clock is not None and clock.host == self.driver.host else None

    def commit(self, trigger: str, window: EngineWindow | None, *, reason: str | None = None) -> None:
        """Change the state. Raises StateError if the trigger is illegal."""
        self.machine.commit(
            trigger,
            step=None if window is None else window.window.step,
            role=self.role,
            replica=self.replica,
            backend=self.driver.kind,
            reason=reason,
        )
        self._observer.changes.changed()

    def rest(self, reason: str) -> None:
        """Go back to idle, from any state."""
        self.disarm(reason)
        if self.machine.state != "idle":
            self.commit("done" if self.machine.state == "flushing" else "abort", None, reason=reason)

    # -- the window that it is prepared for

    def reserve(self, window: EngineWindow) -> None:
        """Note that it is about to be armed for a window: a start that arrives first uses the same folder."""
        if self.detached:
            self._observer.unused(self, window)
        else:
            self._arming.append(window)

    def note_armed(self, window: EngineWindow) -> None:
        """Note that it is armed for a window."""
        if self.machine.state == "idle":
            self.commit("arm", window)
        if self.armed is not None:  # for a step that was not entered
            self._observer.unused(self, self.armed)
        self.armed = window

    def disarm(self, reason: str) -> None:
        """Forget the window that it is armed for."""
        armed, self.armed = self.armed, None
        if armed is not None:
            self._observer.unused(self, armed)
        if self.machine.state == "armed":
            self.commit("abort", armed, reason=reason)

    def prepared_for(self, window: Window) -> EngineWindow | None:
        """Return the place that it is armed for, or being armed for, if it belongs to this window."""
        for place in (self.armed, *self._arming):
            if place is not None:
                other = place.window
                if other.step == window.step and other.occurrence == window.occurrence:
                    return place
        return None

    def uses(self, window: EngineWindow) -> bool:
        """Return whether it is armed for the folder of this window, is being armed for it, or records into it."""
        used = (self.armed, *self._arming, None if self.recording is None else self.recording.window)
        return any(place is not None and place.is_at(window) for place in used)

    # -- clock and health

    async def compare_clocks(self) -> None:
        """Keep the better of two comparisons: clocks drift less within a step than one reading may be wrong."""
        try:
            clock = await self.driver.clock()
        except BaseException as error:  # noqa: BLE001 - without it only the timeline is less exact, not the capture
            logger.info("engine.clock_unknown", target=self.label, reason=describe_error(error))
            return
        if clock is not None and (self.clock is None or clock.error_ns <= self.clock.error_ns):
            self.clock = clock

    def note_calls(self, clock: Clock | None) -> None:
        """Use the clock that the calls of a capture show, unless a better one is known that agrees with it."""
        known = self.clock
        if clock is None or (known is not None and known.method != clock.method):
            return
        if (
            known is None
            or clock.error_ns <= known.error_ns
            or abs(clock.offset_ns - known.offset_ns) > clock.error_ns + known.error_ns  # it was set since
        ):
            self.clock = clock

    def note_health(self, error: BaseException | None) -> None:
        """Note the health after a call; None: it has succeeded."""
        if error is None:
            self.set_health("ok", None)
        else:
            health = error.health if isinstance(error, EngineFailure) else "unknown"
            self.set_health(health, describe_error(error))

    def set_health(self, health: Health, reason: str | None) -> None:
        """Log each change once: an engine that stays dead for a thousand steps is logged once."""
        before, self.health = self.health, health
        if before == health:
            return
        if health == "unreachable" and not self.detached:
            recovered = self.driver.recovered()
            if recovered is not None:
                self._recovering = asyncio.ensure_future(self._recover(recovered))
        line = {"name": self.driver.name, "before": before, "health": health, "reason": reason}
        self._observer.changes.add_health({"target": self.label, **line})
        self._observer.changes.changed()

    async def _recover(self, recovered: Awaitable[None]) -> None:
        """Wait until an engine that was unreachable answers again, or is dead."""
        try:
            await recovered
        except ours(Exception) as error:  # a plug-in may raise anything
            if isinstance(error, EngineFailure) and error.health == "dead" and self.health == "unreachable":
                self.note_health(error)
            return
        if self.health == "unreachable":
            self.set_health("unknown", "it answers again, and is prepared before the next recorded step")
