"""An engine as a target: the four states around a driver, its health, and its part of each window.

Everything here runs on stepprof's own event loop, so that one thread changes the state. A start is committed before it is sent:
once the request has left, a stop must follow, even if the waiting window times out. Nothing sent is ever cancelled; who waited too
long stops waiting, and the late answer is still worked off: a late start is stopped at once, a late stop's files are kept.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from stepprof.log import logger
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.closing import close
from stepprof.remote.core.constants import LOST, RANKS
from stepprof.remote.core.coverage import shortfall
from stepprof.remote.core.device_leases import Turn
from stepprof.remote.core.event import passed
from stepprof.remote.core.inherited_captures import naming
from stepprof.remote.core.late_reports import Awaiting
from stepprof.remote.core.stop_cost import LATE_SECONDS, overrun_seconds, write_seconds
from stepprof.run.manifest_writer import as_entries, describe_error
from stepprof.run.reasons import ReasonCode
from stepprof.state_machine import EngineTargetMachine

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from stepprof.remote.base import Clock, EngineDriver, EngineWindow, Health, Stopped
    from stepprof.remote.core.engine_capture import Recording
    from stepprof.run.model import Outcome, Window
    from stepprof.run.schema import EngineEntry

__all__ = ["EngineTarget", "HealthChange"]


@dataclass(frozen=True, slots=True)
class HealthChange:
    """What the manifest and the log say of an engine."""

    label: str
    name: str
    before: Health
    after: Health
    reason: str | None


class Observer(Protocol):
    """Receives changes of an engine's state and health: the registry."""

    def changed(self) -> None:
        """The state or the health has changed."""

    def tell_transition(self, line: dict[str, object]) -> None:
        """A transition, as it belongs in the log."""

    def tell_health(self, change: HealthChange) -> None:
        """A change of the health."""

    def unused(self, target: EngineTarget, window: EngineWindow) -> None:
        """A folder that was made for nothing, unless the target uses it again by now."""


class EngineTarget:
    """One attached engine.

    Args:
        driver: speaks to it.
        role: whose windows it follows.
        replica: its number among the role's engines.
        fleet: receives each change of the state or the health.
        trace_dir: a folder that the engine's host and this one share.
    """

    def __init__(
        self,
        driver: EngineDriver,
        role: str,
        replica: int,
        fleet: Observer,
        trace_dir: Path | None = None,
    ) -> None:
        driver.position = replica
        self.driver = driver
        self.role = role
        self.replica = replica
        self.trace_dir = trace_dir
        self.workers: frozenset[int] | None = None
        """Which of its own ranks are asked for; None: all."""
        self.label = f"{role}/{replica}"
        self.machine = EngineTargetMachine(self.label, fleet.tell_transition)
        self.health: Health = "ok"
        self.clock: Clock | None = None
        self.recording: Recording | None = None
        self.armed: EngineWindow | None = None
        self._arming: EngineWindow | None = None
        self._fleet = fleet
        self._acting = asyncio.Lock()
        self._turn = Turn()
        self._recovering: asyncio.Task[None] | None = None
        """Held so that it is not collected while it waits."""
        self._left = False
        self.awaiting = Awaiting(self.label, fleet.changed)

    @property
    def is_rank(self) -> bool:
        """Whether it is the session of another process, not an engine."""
        return self.driver.kind in RANKS

    @property
    def width(self) -> int:
        """How many ranks of its own it has, as far as its driver says (``workers``): one otherwise."""
        return self.driver.workers or 1

    def __repr__(self) -> str:
        return f"<EngineTarget {self.label} {self.driver.kind} {self.driver.name} {self.machine.state} {self.health}>"

    # -- arming

    async def prepare(self, window: EngineWindow) -> None:
        """Arm for a window that is about to come. Raises EngineFailure, or whatever the driver does."""
        try:
            async with self._acting:
                if self.recording is None and not self._left:
                    await self._arm(window)
                if self._left:
                    self.disarm("detached")
                    raise EngineFailure("it was detached while it was being armed", "ok")
        finally:
            self._arming = None

    def reserve(self, window: EngineWindow) -> None:
        """It is about to be armed for this window: a start that comes in between uses the same folder."""
        self._arming = window

    def prepared_for(self, window: Window) -> EngineWindow | None:
        """What it is armed for, or being armed for, if that is this very window."""
        for place in (self.armed, self._arming):
            if place is not None:
                other = place.window
                if other.step == window.step and other.occurrence == window.occurrence:
                    return place
        return None

    def uses(self, window: EngineWindow) -> bool:
        """Whether the folder of this window is one that it is armed for, is being armed for, or records into."""
        used = (self.armed, self._arming, None if self.recording is None else self.recording.window)
        return any(place is not None and place.is_at(window) for place in used)

    async def _arm(self, window: EngineWindow) -> None:
        if self.armed is not None and self.armed.is_at(window):
            return
        try:
            await self.driver.arm(window)
            await self._compare_clocks()
            if not self.is_rank:
                self._turn.announce(window)
        except BaseException as error:
            self.disarm(describe_error(error))
            self._note(error)
            raise
        if self.machine.state == "idle":
            self._commit("arm", window)
        if self.armed is not None:  # for a step that has not come
            self._fleet.unused(self, self.armed)
        self.armed = window
        self._note(None)

    def disarm(self, reason: str) -> None:
        """Forget what was prepared."""
        armed, self.armed = self.armed, None
        if armed is not None:
            self._fleet.unused(self, armed)
        if self.machine.state == "armed":
            self._commit("abort", armed, reason=reason)

    @property
    def boot_id(self) -> str | None:
        """The boot of the engine's machine, where a comparison of clocks has found it."""
        clock = self.clock
        return clock.boot_id if clock is not None and clock.host == self.driver.host else None

    async def _compare_clocks(self) -> None:
        """Keep the better of two comparisons: clocks drift less within a step than one reading may be wrong."""
        try:
            clock = await self.driver.clock()
        except BaseException as error:  # noqa: BLE001 - without it the timeline is less exact, the capture is not
            logger.info("engine.clock_unknown", target=self.label, reason=describe_error(error))
            return
        if clock is not None and (self.clock is None or clock.error_ns <= self.clock.error_ns):
            self.clock = clock

    # -- recording

    async def record(self, recording: Recording, window: EngineWindow) -> None:
        """Take part in a window, from its start to the last answer; `recording` is the one it was claimed with. Never raises."""
        try:
            async with self._acting:
                await self._record(recording, window)
        except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too; the manifest and the log say it
            self._fail(recording, error)
            if recording.sent and not self.is_rank:
                await self._name_files(recording, window)
        finally:
            self._turn.give()
            self._to_idle("the window is over")
            self.release(recording)

    def release(self, recording: Recording) -> None:
        """Nothing more will come of it: the next window may have the engine."""
        self.recording = None
        recording.finish()
        self._fleet.changed()

    async def _record(self, recording: Recording, window: EngineWindow) -> None:
        if self.armed is not window:
            await self._arm(window)
        # what an actor or a server is, some know only now
        if window.metadata.get("engine") != self.driver.kind:
            window = replace(window, metadata={**window.metadata, "engine": self.driver.kind})
            recording.window = window
        recording.entry.update(kind=self.driver.kind, host=self.driver.host, boot_id=self.boot_id)
        # a rank's own session takes its own turn
        refused = None if self.is_rank else await self._turn.take(recording, window, self.label)
        if refused is not None:
            self.disarm(refused)
            return
        if recording.stop.is_set():
            self.disarm("the window ended before the engine was ready")
            if recording.entry.status != "failed":
                recording.tell(
                    "skipped",
                    "the window ended before the engine was ready; nothing was sent to it",
                    ReasonCode.NOT_READY,
                )
            return
        self._commit("start", window)
        recording.send_start()
        self.armed = None
        began = time.perf_counter()
        try:
            await self.driver.start(window)
        except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too; the manifest and the log say it
            await self._start_failed(recording, error)
            return
        recording.start_answered()
        entry = recording.entry
        entry.update(
            start_seconds=round(time.perf_counter() - began, 6),
            start_unix_ns=recording.begun_ns or time.time_ns(),
        )
        if recording.late is None:
            recording.tell("lost", f"{LOST}{self._where()}", ReasonCode.RECORDING, pending=True)
        self._note(None)
        recording.started.open()
        await recording.stop.wait()
        await self._stop(recording, window)

    async def _stop(self, recording: Recording, window: EngineWindow) -> None:
        capped_by = recording.capped_by
        if capped_by is not None:
            logger.warning("capture.capped", target=self.label, reason=capped_by)
        self._commit("stop", window, reason=capped_by)
        recording.send_stop()
        recording.entry.end_unix_ns = recording.ended_ns or time.time_ns()
        recording.save()  # that its window has closed is known whatever becomes of the stop
        began = time.perf_counter()
        try:
            stopped = await self.driver.stop(window)
        finally:
            recording.entry.stop_seconds = round(time.perf_counter() - began, 6)
        await self._compare_clocks()
        entry = recording.entry
        partial = recording.late or stopped.partial or self._shortfall(window, entry, stopped)
        overrun = overrun_seconds(entry.end_unix_ns, stopped.artifacts, self.clock)
        entry.update(
            health="ok",
            host=self.driver.host,
            boot_id=self.boot_id,
            capped_by=capped_by or stopped.capped_by,
            write_seconds=write_seconds(stopped.artifacts, self.clock),
            overrun_seconds=overrun,
        )
        if (overrun or 0.0) > LATE_SECONDS:
            logger.warning("engine.stopped_late", target=self.label, step=recording.step, seconds=overrun)
        if stopped.later is not None:
            self.awaiting.begin(recording, stopped.later, partial)
        elif stopped.joined is not None:
            step, stem = stopped.joined
            code = ReasonCode.INCOMPLETE if partial else None
            recording.tell("joined", partial, code, capture={"step": step, "stem": stem})
        else:
            recording.keep(as_entries(stopped.artifacts), partial)
        self._note(None)
        self._commit("done", window)

    def _shortfall(self, window: EngineWindow, entry: EngineEntry, stopped: Stopped) -> str | None:
        """Return what the traces lack of the window, by the times that they state."""
        options = window.options
        if self.is_rank or options.by_stage:
            return None
        begun = None if options.delay_iterations else entry.start_unix_ns
        ended = entry.end_unix_ns if stopped.capped_by is None else entry.start_unix_ns
        if ended is None:
            return None
        return shortfall(stopped.artifacts, begun, ended, self.clock)

    async def _start_failed(self, recording: Recording, error: BaseException) -> None:
        """Let the window begin at once; then stop the engine, where the start may have arrived all the same."""
        self._fail(recording, error)
        recording.start_failed()
        # what says nothing of the engine does not say that it has not begun either
        if not isinstance(error, EngineFailure) or error.owes_stop:
            await self._stop_for_sure(recording)

    async def _stop_for_sure(self, recording: Recording) -> None:
        """Send the stop that a failed start needs. If it finds the engine dead, that is why the start failed."""
        try:
            await self.driver.abort()
        except BaseException as error:  # noqa: BLE001 - the start's own failure is in the manifest
            if isinstance(error, EngineFailure) and error.health == "dead":
                self._fail(recording, error)
                return
            logger.warning(
                "engine.cleanup_failed",
                target=self.label,
                name=self.driver.name,
                reason=describe_error(error),
            )

    def give_up_start(self, recording: Recording, seconds: float, hint: str | None = None) -> None:
        """No window waits for the start any longer; should it still come, it is stopped at once and kept as partial. `hint`: what else to do."""
        if recording.started.is_open or recording.late is not None:
            return
        recording.timed_out = True
        if recording.sent:
            self._set_health("unknown", "its start has not answered")
            what = f"did not answer its start within {seconds:.3g} s"
            cure = "a late start is stopped at once, and its files are kept"
        else:
            what = f"was not ready within {seconds:.3g} s"
            cure = "nothing was sent to it; raise engine_start_timeout_seconds, or find out what keeps it from answering"
        if self.driver.waiting:
            what = f"{what}: {self.driver.waiting}"
        self.note_late(recording, seconds)
        error = "; ".join(filter(None, [f"the engine {what}", cure, hint]))
        recording.tell("failed", error, ReasonCode.START_UNANSWERED, health=self.health)
        recording.stop.set()

    @staticmethod
    def note_late(recording: Recording, seconds: float) -> None:
        """The window began without it."""
        recording.begun_ns = recording.begun_ns or time.time_ns()
        late = f"its start was answered after more than {seconds:.3g} s: what it has begins late"
        recording.late = recording.late or late

    def give_up_stop(self, recording: Recording, seconds: float) -> None:
        """Stop waiting for the stop; its files are kept when they come."""
        if recording.finished.is_open or recording.entry.status in ("failed", "skipped"):
            return
        recording.timed_out = True
        logger.warning("engine.stop_unanswered", target=self.label, name=self.driver.name, seconds=seconds)
        self._tell_unanswered(recording)

    def _tell_unanswered(self, recording: Recording) -> None:
        """Note for how long a stop has not been answered; a capture that has an outcome keeps it."""
        end = recording.entry.end_unix_ns
        if end is None or recording.entry.status != "lost":
            return
        waited = (time.time_ns() - end) / 1e9
        what = "its window has closed, and its stop has not been answered"
        recording.tell(
            "lost",
            f"{what} within {waited:.3g} s; what it still brings is kept",
            ReasonCode.STOP_UNANSWERED,
            pending=True,
        )

    async def leave(self, reason: str, *, answer_seconds: float, timeout: float) -> None:
        """Take no more part: stop a running capture, forget an armed one, close the driver. Never raises.

        Args:
            reason: why the capture is partial.
            answer_seconds: how long to wait, in all, for answers of the engine.
            timeout: how long to wait for exports and reports that are under way.
        """
        self._left = True
        began = time.monotonic()
        recording = self.recording
        arming, self._arming = self._arming, None
        if arming is not None:
            self._fleet.unused(self, arming)
        if recording is None:
            self.disarm("detached")
        else:
            if not recording.stop.is_set():  # else its window has closed: only the answer is missing
                recording.late = reason
                recording.stop.set()
            # without a start that was sent, the engine has nothing to stop
            if (recording.sent or not recording.timed_out) and not await passed(
                [recording.finished], answer_seconds
            ):
                self._tell_unanswered(recording)
        await self.awaiting.end(max(began + timeout - time.monotonic(), 0.0))
        spent = time.monotonic() - began
        await close(self.driver, self.label, answer_seconds=answer_seconds - spent, timeout=timeout - spent)

    # -- state and health

    def _where(self) -> str:
        """Return where the files of a capture come to that nothing may bring into the run; nothing, if its driver does not tell."""
        place = self.driver.writes_to
        return "" if place is None else f"; what it writes comes to {place}"

    async def _name_files(self, recording: Recording, window: EngineWindow) -> None:
        """Have the entry of a capture that failed name the files that it left, or the place that they come to."""
        entry, where = recording.entry, self._where()
        if entry.status in ("failed", "lost"):
            entry.error = await naming(str(entry.error), window, where)
            recording.save()

    def _fail(self, recording: Recording, error: BaseException) -> None:
        self._note(error)
        entry = recording.entry
        gone = self.health == "dead" or (isinstance(error, EngineFailure) and error.lost)
        lost = self.machine.state == "flushing" and gone
        if entry.end_unix_ns is None and recording.sent:
            entry.end_unix_ns = time.time_ns()
        status: Outcome = "lost" if lost else "failed"
        recording.fail(status, describe_error(error), ReasonCode.ENGINE_FAILED, self.health)

    def _note(self, error: BaseException | None) -> None:
        if error is None:
            self._set_health("ok", None)
        else:
            health = error.health if isinstance(error, EngineFailure) else "unknown"
            self._set_health(health, describe_error(error))

    def _set_health(self, health: Health, reason: str | None) -> None:
        """Log each change once: an engine that stays dead for a thousand steps is logged once."""
        before, self.health = self.health, health
        if before != health:
            if health == "unreachable" and not self._left:
                self._watch_recovery()
            self._fleet.tell_health(HealthChange(self.label, self.driver.name, before, health, reason))
            self._fleet.changed()

    def _watch_recovery(self) -> None:
        recovered = self.driver.recovered()
        if recovered is not None:
            self._recovering = asyncio.ensure_future(self._recover(recovered))

    async def _recover(self, recovered: Awaitable[None]) -> None:
        """Wait until an engine that was unreachable answers again, or is dead."""
        try:
            await recovered
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
            if isinstance(error, EngineFailure) and error.health == "dead" and self.health == "unreachable":
                self._note(error)
            return
        if self.health == "unreachable":
            self._set_health("unknown", "it answers again, and is prepared before the next recorded step")

    def _to_idle(self, reason: str) -> None:
        self.disarm(reason)
        if self.machine.state != "idle":
            self._commit("done" if self.machine.state == "flushing" else "abort", None, reason=reason)

    def _commit(self, trigger: str, window: EngineWindow | None, *, reason: str | None = None) -> None:
        step = None if window is None else window.window.step
        self.machine.commit(
            trigger,
            step=step,
            role=self.role,
            replica=self.replica,
            backend=self.driver.kind,
            reason=reason,
        )
        self._fleet.changed()
