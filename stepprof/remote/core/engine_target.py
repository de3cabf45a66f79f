"""One attached engine: makes the calls of its driver for each window, and handles late answers and failures.

Everything runs on stepprof's own event loop. A start is committed before it is sent: once the
request is sent, a stop must follow, even if the window no longer waits. No call is cancelled. After
a time-out the late answer is still handled: a late start is stopped at once, the files of a late
stop are kept.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.log import logger
from stepprof.remote.base import RANKS, EngineFailure
from stepprof.remote.core.device_leases import Turn
from stepprof.remote.core.engine_capture import LOST
from stepprof.remote.core.engine_state import EngineState
from stepprof.remote.core.event import passed
from stepprof.remote.core.late_files import naming
from stepprof.remote.core.late_reports import Awaiting
from stepprof.remote.core.trace_times import LATE_SECONDS, by_calls, lacking, overrun_seconds, write_seconds
from stepprof.run.manifest_writer import as_entries, describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import EngineDriver, EngineWindow
    from stepprof.remote.core.engine_capture import Recording
    from stepprof.remote.core.engine_state import Observer
    from stepprof.run.model import Outcome

LEAST_SECONDS = 0.5
"""The minimum time for the answer to a driver's close, even if the stop before it used up the whole limit."""


class EngineTarget(EngineState):
    """One attached engine.

    Args:
        driver: calls the engine.
        role: the role whose windows it follows.
        replica: its number among the role's engines.
        fleet: receives each change of the state or the health.
        trace_dir: a folder that the engine's host shares with this host; None: not given.
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
        super().__init__(driver, role, replica, fleet)
        self.trace_dir = trace_dir
        self.workers: frozenset[int] | None = None
        """The selected ranks of the engine; None: all."""
        self._acting = asyncio.Lock()
        self._turn = Turn()
        self.awaiting = Awaiting(self.label, fleet.changes.changed)

    @property
    def is_rank(self) -> bool:
        """Whether it is the session of another process, not an engine."""
        return self.driver.kind in RANKS

    @property
    def width(self) -> int:
        """The number of its ranks, if its driver knows it (``workers``); else one."""
        return self.driver.workers or 1

    def __repr__(self) -> str:
        return f"<EngineTarget {self.label} {self.driver.kind} {self.driver.name} {self.machine.state} {self.health}>"

    # -- arming

    async def prepare(self, window: EngineWindow) -> None:
        """Arm for a window that it was reserved for. Raises EngineFailure, or any exception of the driver."""
        try:
            async with self._acting:
                if self.recording is None and not self.detached:
                    await self._arm(window)
                if self.detached:
                    self.disarm("detached")
                    raise EngineFailure("it was detached while it was being armed", "ok")
        finally:
            if window in self._arming:  # otherwise it was detached meanwhile
                self._arming.remove(window)

    async def _arm(self, window: EngineWindow) -> None:
        if self.armed is not None and self.armed.is_at(window):
            return
        try:
            await self.driver.arm(window)
            await self.compare_clocks()
            if not self.is_rank:
                self._turn.announce(window)
        except BaseException as error:
            self.disarm(describe_error(error))
            self.note_health(error)
            raise
        self.note_armed(window)
        self.note_health(None)

    # -- recording

    async def record(self, recording: Recording, window: EngineWindow) -> None:
        """Take part in a window, from its start to the last answer. `recording` is the capture that it was claimed with. Never raises."""
        try:
            async with self._acting:
                await self._record(recording, window)
        except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too; the manifest and the log report it
            self._fail(recording, error)
            if recording.sent and not self.is_rank:
                await self._name_files(recording, window)
        finally:
            self._turn.give()
            self.rest("the window is over")
            self.release(recording)

    def release(self, recording: Recording) -> None:
        """Finish a capture, so that the next window may use the engine."""
        self.recording = None
        recording.finish()
        self._observer.changes.changed()

    async def _record(self, recording: Recording, window: EngineWindow) -> None:
        if self.armed is not window:
            await self._arm(window)
        # some drivers know the kind of an actor or a server only now
        if window.metadata.get("engine") != self.driver.kind:
            window = replace(window, metadata={**window.metadata, "engine": self.driver.kind})
            recording.window = window
        recording.entry.update(kind=self.driver.kind, host=self.driver.host, boot_id=self.boot_id)
        # a rank's own session takes the leases itself
        refused = None if self.is_rank else await self._turn.take(recording, window, self.label)
        if refused is not None:
            self.disarm(refused)
            return
        if recording.stop.is_set():
            self.disarm("the window ended before the engine was ready")
            if recording.entry.status != "failed":
                recording.record_outcome(
                    "skipped",
                    "the window ended before the engine was ready; nothing was sent to it",
                    ReasonCode.NOT_READY,
                )
            return
        self.commit("start", window)
        recording.send_start()
        self.armed = None
        began = real_time.perf_counter()
        try:
            await self.driver.start(window)
        except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too; the manifest and the log report it
            await self._start_failed(recording, error)
            return
        recording.start_answered()
        entry = recording.entry
        entry.update(
            start_seconds=round(real_time.perf_counter() - began, 6),
            start_unix_ns=recording.begun_ns or real_time.time_ns(),
        )
        if recording.late is None:
            recording.record_outcome("lost", f"{LOST}{self._where()}", ReasonCode.RECORDING, pending=True)
        self.note_health(None)
        recording.started.open()
        await recording.stop.wait()
        await self._stop(recording, window)

    async def _stop(self, recording: Recording, window: EngineWindow) -> None:
        capped_by = recording.capped_by
        if capped_by is not None:
            logger.warning("capture.capped", target=self.label, reason=capped_by)
        self.commit("stop", window, reason=capped_by)
        recording.send_stop()
        recording.entry.end_unix_ns = recording.ended_ns or real_time.time_ns()
        recording.save()  # the window has ended at a known time, regardless of the stop's result
        began = real_time.perf_counter()
        try:
            stopped = await self.driver.stop(window)
        finally:
            recording.entry.stop_seconds = round(real_time.perf_counter() - began, 6)
        answered_ns = real_time.time_ns()
        await self.compare_clocks()
        entry = recording.entry
        if recording.begun_ns is None and self.driver.host is not None:
            self.note_calls(by_calls(window, stopped, entry, self.driver.host, answered_ns))
        lacks = None if self.is_rank else lacking(window, stopped, entry, self.clock)
        partial = recording.late or stopped.partial or lacks
        overrun = overrun_seconds(entry.end_unix_ns, stopped.artifacts, self.clock)
        entry.update(
            health="ok",
            host=self.driver.host,
            boot_id=self.boot_id,
            capped_by=capped_by or stopped.capped_by,
            write_seconds=write_seconds(stopped.artifacts, self.clock),
            overrun_seconds=overrun,
            statistics=None if stopped.statistics is None else dict(stopped.statistics),
        )
        if (overrun or 0.0) > LATE_SECONDS:
            logger.warning("engine.stopped_late", target=self.label, step=recording.step, seconds=overrun)
        if stopped.later is not None:
            self.awaiting.begin(recording, stopped.later, partial)
        elif stopped.joined is not None:
            step, stem = stopped.joined
            code = ReasonCode.INCOMPLETE if partial else None
            recording.record_outcome("joined", partial, code, capture={"step": step, "stem": stem})
        else:
            recording.keep(as_entries(stopped.artifacts), partial)
        self.note_health(None)
        self.commit("done", window)

    async def _start_failed(self, recording: Recording, error: BaseException) -> None:
        """Let the window begin at once; then stop the engine if the start may have arrived."""
        self._fail(recording, error)
        recording.start_failed()
        # after an unknown exception the engine may have started
        if not isinstance(error, EngineFailure) or error.owes_stop:
            await self._stop_for_sure(recording)

    async def _stop_for_sure(self, recording: Recording) -> None:
        """Send the stop that must follow a failed start. If it finds the engine dead, that is why the start failed."""
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

    def abandon_start(self, recording: Recording, seconds: float, hint: str | None = None) -> None:
        """Stop waiting for a start. A late start is stopped at once and kept as partial. `hint`: what else the user can do."""
        if recording.started.is_open or recording.late is not None:
            return
        recording.timed_out = True
        if recording.sent:
            self.set_health("unknown", "its start has not answered")
            what = f"did not answer its start within {seconds:.3g} s"
            cure = "a late start is stopped at once, and its files are kept"
        else:
            what = f"was not ready within {seconds:.3g} s"
            cure = "nothing was sent to it; raise engine_start_timeout_seconds, or find out why it does not answer"
        if self.driver.waiting:
            what = f"{what}: {self.driver.waiting}"
        recording.begin_late(seconds)
        error = "; ".join(filter(None, [f"the engine {what}", cure, hint]))
        recording.record_outcome("failed", error, ReasonCode.START_UNANSWERED, health=self.health)
        recording.stop.set()

    def abandon_stop(self, recording: Recording, seconds: float) -> None:
        """Stop waiting for the stop; its files are kept when they arrive."""
        if recording.finished.is_open or recording.entry.status in ("failed", "skipped"):
            return
        recording.timed_out = True
        logger.warning("engine.stop_unanswered", target=self.label, name=self.driver.name, seconds=seconds)
        recording.note_unanswered()

    def detach(self) -> None:
        """Take part in no further window, and disarm. A running capture ends with its window."""
        self.detached = True
        arming, self._arming = self._arming, []
        for window in arming:
            self._observer.unused(self, window)
        if self.recording is None:
            self.disarm("detached")

    async def leave(self, reason: str, *, answer_seconds: float, timeout: float) -> None:
        """Leave: stop a running capture, disarm, close the driver. Never raises.

        Args:
            reason: why the capture is partial.
            answer_seconds: how long to wait, in all, for answers of the engine.
            timeout: how long to wait for pending exports and reports.
        """
        began = real_time.monotonic()
        recording = self.recording
        self.detach()
        if recording is not None:
            if not recording.stop.is_set():  # otherwise its window has ended, and only the answer is missing
                recording.late = reason
                recording.stop.set()
            # no start was sent, so there is nothing to stop
            if (recording.sent or not recording.timed_out) and not await passed(
                [recording.finished], answer_seconds
            ):
                recording.note_unanswered()
        await self.awaiting.end(max(began + timeout - real_time.monotonic(), 0.0))
        spent = real_time.monotonic() - began
        await self._close(max(answer_seconds - spent, LEAST_SECONDS), timeout - spent)

    async def _close(self, answer_seconds: float, timeout: float) -> None:
        """Close the driver. Cancels nothing: a driver that hangs is left behind."""
        # only sessions of other processes have exports to wait for
        bound = max(timeout, answer_seconds) + LEAST_SECONDS if self.is_rank else answer_seconds

        async def close() -> str | None:
            try:
                await self.driver.close(max(timeout, 0.0), answer_seconds)
            except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too
                return describe_error(error)
            return None

        closing = asyncio.ensure_future(close())
        await asyncio.wait([closing], timeout=bound)
        reason = closing.result() if closing.done() else f"no answer within {bound:.3g} s"
        if reason is not None:
            logger.warning("engine.not_closed", target=self.label, name=self.driver.name, reason=reason)

    # -- state and health

    def _where(self) -> str:
        """Return where the engine writes its files, for a capture whose files may never be moved to
        the run; empty if its driver does not know.
        """
        place = self.driver.writes_to
        return "" if place is None else f"; it writes to {place}"

    async def _name_files(self, recording: Recording, window: EngineWindow) -> None:
        """Add the files of a failed capture to its entry, or the folder that they are written to."""
        entry, where = recording.entry, self._where()
        if entry.status in ("failed", "lost"):
            entry.error = await naming(str(entry.error), window, where)
            recording.save()

    def _fail(self, recording: Recording, error: BaseException) -> None:
        self.note_health(error)
        entry = recording.entry
        gone = self.health == "dead" or (isinstance(error, EngineFailure) and error.lost)
        lost = self.machine.state == "flushing" and gone
        if entry.end_unix_ns is None and recording.sent:
            entry.end_unix_ns = real_time.time_ns()
        status: Outcome = "lost" if lost else "failed"
        recording.fail(status, describe_error(error), ReasonCode.ENGINE_FAILED, self.health)
