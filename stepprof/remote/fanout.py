"""One window over its engines: all start together and stop together; one that is slow, dead or hung delays nobody past the bound.

Who opens a window has the starts sent and waits, with a bound, on whatever thread or event loop it is on; everything else happens
on stepprof's own loop. What came of each engine is in `stepprof.remote.entries`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepprof.log import logger
from stepprof.records import describe_error
from stepprof.remote.engine import EngineTarget
from stepprof.remote.entries import Entries
from stepprof.remote.gate import passed
from stepprof.remote.inner import Inner, entered, exit_all, is_inner
from stepprof.remote.loop import awaited, in_thread, remote_loop, waited
from stepprof.remote.ownloop import HINT, NOT_STARTED, STOPPED_LATE, lives_on
from stepprof.remote.recording import Recording

if TYPE_CHECKING:
    from stepprof.config import Policy
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.fleet import Fleet
    from stepprof.window import Window

__all__ = ["Bracket"]

SLACK_SECONDS = 1.0
"""What a wait is longer than the bound it waits for: the bound itself is kept on the loop."""


class Bracket:
    """One window over its engines, from the sending of the starts to the last answer.

    Args:
        fleet: the engines that are attached.
        window: the window.
        policy: what holds for its role.
        blocked: the event loop that the caller blocks while it waits: engines that live on it could not answer, so that nothing is
            sent to them.
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
        self._blocked = blocked
        self._entries = Entries(fleet.origin, window, fleet.post, fleet.unsaved)
        self._recordings: list[tuple[EngineTarget, Recording]] = []
        self._joins: list[tuple[EngineTarget, Recording, dict[str, Any]]] = []
        self._inner: list[Inner] = []
        self._unanswered = 0
        self._closing = False
        self._body_began = False
        self._cap: asyncio.TimerHandle | None = None
        self._started: concurrent.futures.Future[None] | None = None
        self._stopped: concurrent.futures.Future[None] | None = None

    # -- from whoever opens and closes the window

    def send_starts(self) -> None:
        """Have the starts sent."""
        self._started = remote_loop().submit(self._guarded(self._start()))

    def wait_started(self) -> None:
        """Wait until each engine has started or failed, or the bound is over."""
        if not waited(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS):
            remote_loop().call(self._begin_without, time.monotonic())

    async def started(self) -> None:
        """`wait_started` for a coroutine."""
        if not await awaited(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS):
            remote_loop().call(self._begin_without, time.monotonic())

    def send_stops(
        self,
        body_error: BaseException | None,
        *,
        partial: str | None = None,
        blocked: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Have the stops sent, once; also those of engines whose start has not been answered.

        Args:
            body_error: what the window's body raised.
            partial: why the captures lack something.
            blocked: the event loop that the caller blocks while it waits: engines that live on it answer later, and are not waited for.
        """
        if self._stopped is None:
            self._stopped = remote_loop().submit(self._guarded(self._stop(body_error, partial, blocked)))

    def wait_stopped(self) -> None:
        """Wait until each engine has stopped, or the bound is over."""
        waited(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def stopped(self) -> None:
        """`wait_stopped` for a coroutine."""
        await awaited(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def ended(self, timeout: float) -> None:
        """`stopped` at the end of the run, for ``timeout`` seconds at most."""
        await awaited(self._stopped, min(timeout, self._policy.engine_stop_timeout_seconds))

    # -- on the loop

    async def arm(self) -> None:
        """Prepare every selected engine that is free. A hint: what goes wrong is told when the window comes."""
        free = [
            target
            for target in await self._targets()
            if target.recording is None
            and not target.driver.inside
            and target.prepared_for(self._window) is None
        ]
        windows = await self._places([] if self._fleet.over else free, reserve=True)
        results = await asyncio.gather(
            *(target.prepare(window) for target, window in zip(free, windows, strict=True)),
            return_exceptions=True,
        )
        for target, window, result in zip(free, windows, results, strict=True):
            if isinstance(result, BaseException):
                logger.debug("arm refused", target=target.label, reason=str(result))
            if not target.uses(window):
                self._fleet.unused(target, window)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        bound = self._policy.engine_start_timeout_seconds
        deadline = time.monotonic() + bound
        targets = await self._targets(bound)
        for target in await self._driven_here(list(filter(self._may_start, targets))):
            if await self._is_free(target, deadline):
                self._claim(target)
        claimed = list(self._recordings)
        try:
            windows = await self._places([target for target, _ in claimed])
        except BaseException:
            for target, recording in claimed:
                target.release(recording)
            raise
        if self._body_began:
            self._give_up_starts()
        for (target, recording), window in zip(claimed, windows, strict=True):
            recording.window = window
            recording.finished.then(self._answered)
            self._unanswered += 1
            recording.task = loop.create_task(target.record(recording, window))
        await asyncio.sleep(0)  # the starts are on their way: from here on there is time
        self._entries.write_soon(targets)  # as lost
        if self._policy.max_seconds is not None:
            self._cap = loop.call_later(self._policy.max_seconds, self._look_at_caps)
        waiting = [recording.started for _, recording in self._recordings]
        if not await passed(waiting, deadline - time.monotonic()):
            self._give_up_starts()
        await entered(self._inner, deadline - time.monotonic())

    def _begin_without(self, now: float) -> None:
        """The caller waits no longer, since ``now`` of the monotonic clock: what is answered later begins after the body."""
        self._body_began = True
        for target, recording in self._recordings:
            if recording.answered_at is not None and recording.answered_at > now:
                target.note_late(recording, self._policy.engine_start_timeout_seconds)
        self._give_up_starts()

    def _give_up_starts(self) -> None:
        hint = None if self._blocked is None else HINT
        for target, recording in self._recordings:
            target.give_up_start(recording, self._policy.engine_start_timeout_seconds, hint)

    async def _stop(
        self,
        body_error: BaseException | None,
        partial: str | None,
        blocked: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._closing = True
        for _, recording in self._recordings:
            recording.closing = True
        if self._started is not None:
            await asyncio.wrap_future(self._started)
        if body_error is not None:
            self._entries.tell_body_error(describe_error(body_error))
        bound = self._policy.engine_stop_timeout_seconds
        deadline = time.monotonic() + bound
        await exit_all(self._inner, bound)  # before the outer window's stop is sent
        ending = list(self._recordings)
        for target, recording, entry in self._joins:
            entry["end_unix_ns"] = time.time_ns()
            if recording.stop.is_set():
                entry.update(status="partial", error="the window outlived the capture that it joined")
                continue
            if partial is not None:
                entry.update(status="partial", error=partial)
            if self._window.step == recording.step:
                ending.append((target, recording))
        for _, recording in ending:
            recording.late = recording.late or partial
            recording.leave()
        stopping = [each for each in ending if each[1].stop.is_set() and each[1].answered]
        unable = [each for each in stopping if lives_on(each[0], blocked)]
        self._stop_later(unable)
        waiting = [each[1].finished for each in stopping if each not in unable]
        await passed(waiting, deadline - time.monotonic())
        for target, recording in self._recordings:
            if recording.stop.is_set() and (target, recording) not in unable:
                target.give_up_stop(recording, bound)
        self._entries.write_soon(target for target, _ in self._recordings)
        self._forget_if_over()

    def _stop_later(self, unable: list[tuple[EngineTarget, Recording]]) -> None:
        """The stops of engines on the loop that the caller blocks are answered once it is free: their time begins now all the same."""
        bound = self._policy.engine_stop_timeout_seconds
        for target, recording in unable:
            recording.late = recording.late or STOPPED_LATE
            asyncio.get_running_loop().call_later(bound, target.give_up_stop, recording, bound)
        self._fleet.own_loop.warn_stopped_late([target for target, _ in unable])

    def _look_at_caps(self) -> None:
        """End what has recorded for as long as it may: one timer for all, since a thousand engines are answered one after the other."""
        loop, bound = asyncio.get_running_loop(), self._policy.max_seconds
        if bound is None:
            return
        now = loop.time()
        begun = []
        for _, recording in self._recordings:
            if recording.answered_at is not None and recording.answered_at + bound <= now:
                recording.cap("max_seconds")
            elif not recording.stop.is_set():
                begun.append(recording.answered_at or now)
        self._cap = loop.call_at(min(begun) + bound, self._look_at_caps) if begun else None

    def _answered(self) -> None:
        self._unanswered -= 1
        self._forget_if_over()

    def _forget_if_over(self) -> None:
        """It is over when its window has ended and every engine has given its last answer."""
        if self._stopped is not None and not self._unanswered:
            if self._cap is not None:
                self._cap.cancel()
            self._fleet.forget(self)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """The training loop goes on whatever happens here: a folder that cannot be made, a callable that raises."""
        try:
            await work
        except BaseException as error:  # noqa: BLE001 - told in the log and in the manifest; CancelledError may come from a user's callable
            logger.warning("engines not recorded", role=self._window.role, reason=describe_error(error))
            self._entries.add(None, status="failed", error=describe_error(error))
            self._entries.write_soon()

    # -- who takes part

    async def _targets(self, bound: float | None = None) -> list[EngineTarget]:
        """The selected targets, as those who were attached as a list or a callable say now."""
        role = self._window.role
        engines = [engine for engine in self._fleet.engines if engine.follows(role)]
        asked = {asyncio.ensure_future(engine.ask_again()): engine for engine in engines if engine.changes}
        if asked:
            _, pending = await asyncio.wait(asked, timeout=bound)
            for asking, engine in asked.items():
                if asking in pending:
                    problem = f"{engine.name}: who the engines are was not answered within {bound:.3g} s"
                elif asking.cancelled():
                    problem = f"{engine.name}: the call that says who the engines are was cancelled"
                elif (error := asking.exception()) is not None:
                    problem = f"{engine.name}: {describe_error(error)}"
                else:
                    continue
                logger.warning("engines not known", role=role, reason=problem)
                if not engine.targets:  # else those that were known stand, and tell for themselves
                    self._entries.add(None, status="failed", error=problem)
        return self._fleet.selected(role, self._policy)

    async def _places(self, targets: list[EngineTarget], *, reserve: bool = False) -> list[EngineWindow]:
        """Where each one's files belong: the folder that it is armed for, or being armed for; else a new one."""
        async with self._fleet.placing:
            places = [target.prepared_for(self._window) for target in targets]
            without = [target for target, place in zip(targets, places, strict=True) if place is None]
            made = iter(await in_thread(self._entries.places, without) if without else ())
            windows = [
                self._entries.now(target, place or next(made), self._policy)
                for target, place in zip(targets, places, strict=True)
            ]
            if reserve:
                for target, window in zip(targets, windows, strict=True):
                    target.reserve(window)
        return windows

    def _may_start(self, target: EngineTarget) -> bool:
        """Whether it may be started at all; if not, the manifest says why."""
        if target.driver.inside:
            reason = "its worker is this very process: its work is in this process's own capture"
            self._entries.add(target, status="joined", error=reason)
            return False
        return True

    async def _driven_here(self, targets: list[EngineTarget]) -> list[EngineTarget]:
        """Those that this process drives: an engine that several processes attach is driven by one of them."""
        world = self._fleet.origin.world_size
        if world is None or world < 2:
            return targets
        shared = [target for target in targets if not target.driver.key.startswith("object:")]
        if not shared:
            return targets
        holders = await in_thread(self._entries.take, shared)
        mine = []
        for target in targets:
            holder = holders.get(id(target))
            if holder is None:
                mine.append(target)
            else:
                who = f"{holder.get('host', 'another host')}, pid {holder.get('pid', 'unknown')}"
                self._entries.add(target, status="joined", error=f"driven by another process ({who})")
        return mine

    def _claim(self, target: EngineTarget) -> None:
        """From here on the engine is this window's: one that comes in at the same time finds it taken."""
        recording = Recording(self._entries.add(target), self._entries.save_later, self._window.step)
        recording.closing = self._closing
        target.recording = recording
        self._recordings.append((target, recording))

    async def _is_free(self, target: EngineTarget, deadline: float) -> bool:
        """Whether it can record. It joins what runs and waits for a start or stop under way; else it is skipped, and the manifest says why."""
        blocked = lives_on(target, self._blocked)
        if not blocked:
            await self._settled(target, deadline)
        recording = target.recording
        if recording is not None and recording.running:
            self._join(target, recording)
        elif blocked:
            self._fleet.own_loop.warn_not_started(target)
            self._entries.add(target, status="skipped", error=NOT_STARTED)
        elif recording is None:
            return True
        else:
            why = f"still {target.machine.state}: {recording.unanswered}"
            self._entries.add(target, status="skipped", error=why)
        return False

    @staticmethod
    async def _settled(target: EngineTarget, deadline: float) -> None:
        """Wait while the engine's start or stop for an earlier window is under way."""
        while (recording := target.recording) is not None and not (recording.running or recording.given_up):
            left = max(deadline - time.monotonic(), 0.0)
            if not await passed([recording.awaited], left):
                return

    def _join(self, target: EngineTarget, recording: Recording) -> None:
        """Take part in the capture that runs."""
        capture = recording.window
        place = None
        if (
            capture is not None and not target.is_rank
        ):  # a rank's own manifest says in which capture the window is
            place = {"step": capture.window.step, "stem": capture.stem}
        entry = self._entries.add(
            target, status="joined", error=None, start_unix_ns=time.time_ns(), capture=place
        )
        recording.join(self._window.step, entry, self._entries.save_later)
        self._joins.append((target, recording, entry))
        if capture is not None and is_inner(self._window, capture.window):
            self._inner.append(Inner(target.driver, replace(capture, window=self._window)))
