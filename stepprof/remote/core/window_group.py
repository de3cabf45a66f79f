"""One window over its engines: they start together and stop together, and an engine that is slow, dead or hung delays no other beyond the time limit.

The thread or coroutine that opens a window triggers the starts and waits with a time limit. Everything else runs on stepprof's own loop.
`stepprof.remote.core.manifest_entries` keeps the outcome of each engine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.log import logger
from stepprof.remote.core.blocked_loop import HINT, STOPPED_LATE, runs_on
from stepprof.remote.core.event import passed
from stepprof.remote.core.membership import Members
from stepprof.remote.loop import awaited, remote_loop, waited
from stepprof.run.manifest_writer import describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.engine_capture import Recording
    from stepprof.remote.core.engine_target import EngineTarget
    from stepprof.remote.core.membership import Fleet
    from stepprof.run.model import Window

SLACK_SECONDS = 1.0
"""How much longer a wait is than its timeout, which is applied on the loop."""


class Bracket:
    """One window over its engines, from the sending of the starts to the last answer.

    Args:
        blocked: the event loop that the caller blocks while it waits: nothing is sent to engines
            that live on it, because they could not answer.
    """

    def __init__(
        self,
        fleet: Fleet,
        window: Window,
        policy: Policy,
        blocked: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._fleet = fleet
        self._window = window
        self._policy = policy
        self._hint = None if blocked is None else HINT
        self._members = Members(fleet, window, policy, blocked)
        self._unanswered = 0
        self._body_began = False
        self._cap: asyncio.TimerHandle | None = None
        self._started: concurrent.futures.Future[None] | None = None
        self._stopped: concurrent.futures.Future[None] | None = None

    # called by the session, which opens and closes the window

    def send_starts(self) -> None:
        """Send the starts."""
        self._started = remote_loop().submit(self._guarded(self._start()))

    def wait_started(self) -> None:
        """Wait until each engine has started or failed, within the timeout."""
        if not waited(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS):
            remote_loop().call(self._begin_without, real_time.monotonic())

    async def started(self) -> None:
        """Wait as `wait_started`, in a coroutine."""
        if not await awaited(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS):
            remote_loop().call(self._begin_without, real_time.monotonic())

    def send_stops(
        self,
        body_error: BaseException | None,
        *,
        partial: str | None = None,
        blocked: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Send the stops, once; also to engines whose start has not been answered.

        Args:
            body_error: what the window's body raised.
            partial: why the captures lack something.
            blocked: the event loop that the caller blocks while it waits: engines that live on it
                answer later, and are not awaited.
        """
        if self._stopped is None:
            self._stopped = remote_loop().submit(self._guarded(self._stop(body_error, partial, blocked)))

    @property
    def stops_elsewhere(self) -> bool:
        """Whether training may continue before the stops are answered: all engines are in other
        processes, and no thread of this process calls them.
        """
        targets = [target for target, _ in self._members.recordings]
        return not self._members.joins and not any(
            target.is_rank or target.driver.runs_loop or target.driver.key.startswith("object:")
            for target in targets
        )

    def wait_stopped(self) -> None:
        """Wait until each engine has stopped, within the timeout."""
        waited(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def stopped(self) -> None:
        """Wait as `wait_stopped`, in a coroutine."""
        await awaited(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def ended(self, timeout: float, blocked: asyncio.AbstractEventLoop | None) -> None:
        """Wait as `stopped` at the end of the run, for at most ``timeout`` seconds. Engines on the
        loop that the caller blocks are not awaited.
        """
        bound = min(timeout, self._policy.engine_stop_timeout_seconds)
        recordings = self._members.recordings
        others = [recording.finished for target, recording in recordings if not runs_on(target, blocked)]
        if len(others) == len(recordings):
            await awaited(self._stopped, bound)
        else:
            await passed(others, bound)

    # -- on the loop

    async def arm(self) -> None:
        """Prepare every selected engine that is free. A hint: failures are reported when the window opens."""
        free = [
            target
            for target in await self._members.targets()
            if target.recording is None
            and not target.driver.inside
            and target.prepared_for(self._window) is None
        ]
        if not self._fleet.over:
            windows = await self._members.places(free, reserve=True)
            await asyncio.gather(*map(self._prepare, free, windows))

    async def _prepare(self, target: EngineTarget, window: EngineWindow) -> None:
        try:
            await target.prepare(window)
        except BaseException as error:  # noqa: BLE001 - a driver may raise anything, CancelledError too; the window itself tries again, and reports it
            logger.debug("arm.refused", target=target.label, reason=str(error))
        if not target.uses(window):
            self._fleet.unused(target, window)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        bound = self._policy.engine_start_timeout_seconds
        deadline = real_time.monotonic() + bound
        targets = await self._members.targets(bound)
        await self._members.claim(targets, deadline)
        claimed = list(self._members.recordings)
        try:
            windows = await self._members.places([target for target, _ in claimed])
        except BaseException:
            for target, recording in claimed:
                target.release(recording)
            raise
        if self._body_began:
            self._abandon_starts()
        for (target, recording), window in zip(claimed, windows, strict=True):
            recording.window = window
            recording.finished.then(self._answered)
            self._unanswered += 1
            recording.task = loop.create_task(target.record(recording, window))
        await asyncio.sleep(0)  # the starts are being sent: from here on there is time
        self._members.entries.write_soon(targets)  # written ahead as lost
        if self._policy.max_seconds is not None:
            self._cap = loop.call_later(self._policy.max_seconds, self._look_at_caps)
        waiting = [recording.started for _, recording in self._members.recordings]
        if not await passed(waiting, deadline - real_time.monotonic()):
            self._abandon_starts()
        await self._members.inner_entered(deadline - real_time.monotonic())

    def _begin_without(self, now: float) -> None:
        """Note that the caller stopped waiting at ``now`` of the monotonic clock: an engine that
        answers later begins after the body did.
        """
        self._body_began = True
        for _, recording in self._members.recordings:
            if recording.answered_at is not None and recording.answered_at > now:
                recording.begin_late(self._policy.engine_start_timeout_seconds)
        self._abandon_starts()

    def _abandon_starts(self) -> None:
        for target, recording in self._members.recordings:
            target.abandon_start(recording, self._policy.engine_start_timeout_seconds, self._hint)

    async def _stop(
        self,
        body_error: BaseException | None,
        partial: str | None,
        blocked: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._members.closing = True
        for _, recording in self._members.recordings:
            recording.closing = True
        if self._started is not None:
            await asyncio.wrap_future(self._started)
        if body_error is not None:
            for entry in self._members.entries.fragment.engines:
                entry.body_error = describe_error(body_error)
        bound = self._policy.engine_stop_timeout_seconds
        deadline = real_time.monotonic() + bound
        await self._members.exit_inner(bound)  # before the outer window's stop is sent
        ending = list(self._members.recordings)
        for target, recording, entry in self._members.joins:
            entry.end_unix_ns = real_time.time_ns()
            if recording.stop.is_set():
                entry.update(
                    status="partial",
                    reason_code=ReasonCode.OUTLIVED_CAPTURE,
                    error="the window outlived the capture that it joined",
                )
                continue
            if partial is not None:
                entry.update(status="partial", reason_code=ReasonCode.ENDED_EARLY, error=partial)
            if self._window.step == recording.step:
                ending.append((target, recording))
        for _, recording in ending:
            recording.late = recording.late or partial
            recording.leave()
        stopping = [each for each in ending if each[1].stop.is_set() and each[1].answered]
        unable = [each for each in stopping if runs_on(each[0], blocked)]
        self._stop_later(unable)
        waiting = [each[1].finished for each in stopping if each not in unable]
        await passed(waiting, deadline - real_time.monotonic())
        for target, recording in self._members.recordings:
            if recording.stop.is_set() and (target, recording) not in unable:
                target.abandon_stop(recording, bound)
        self._members.entries.write_soon(target for target, _ in self._members.recordings)
        self._forget_if_over()

    def _stop_later(self, unable: list[tuple[EngineTarget, Recording]]) -> None:
        """Start the time limit of the stops to engines on the event loop that the caller blocks.
        They answer once that loop is free.
        """
        bound = self._policy.engine_stop_timeout_seconds
        for target, recording in unable:
            recording.late = recording.late or STOPPED_LATE
            asyncio.get_running_loop().call_later(bound, target.abandon_stop, recording, bound)
        self._fleet.own_loop.warn_stopped_late([target for target, _ in unable])

    def _look_at_caps(self) -> None:
        """End captures that have reached their time limit: one timer for all, since a thousand
        engines are answered one after another.
        """
        loop, bound = asyncio.get_running_loop(), self._policy.max_seconds
        if bound is None:
            return
        now = loop.time()
        begun = []
        for _, recording in self._members.recordings:
            if recording.answered_at is not None and recording.answered_at + bound <= now:
                recording.cap("max_seconds")
            elif not recording.stop.is_set():
                begun.append(recording.answered_at or now)
        self._cap = loop.call_at(min(begun) + bound, self._look_at_caps) if begun else None

    def _answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:  # an answer that is written later may have brought a clock
            self._members.entries.note_clocks(target for target, _ in self._members.recordings)
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        """Forget the window once it has ended and every engine has given its last answer."""
        if self._stopped is not None and not self._unanswered:
            if self._cap is not None:
                self._cap.cancel()
            self._fleet.forget(self)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work so that no failure reaches the training loop, such as a folder that cannot be
        made or a callable that raises.
        """
        try:
            await work
        except BaseException as error:  # noqa: BLE001 - reported in the log and the manifest; a user's callable may raise CancelledError
            logger.warning("engine.not_recorded", role=self._window.role, reason=describe_error(error))
            self._members.entries.add(
                None, status="failed", code=ReasonCode.ENGINES_UNKNOWN, error=describe_error(error)
            )
            self._members.entries.write_soon()
