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
from stepprof.remote.entries import Entries, remove_folder
from stepprof.remote.gate import passed
from stepprof.remote.inner import Inner, entered, exit_all, is_inner
from stepprof.remote.loop import in_thread, remote_loop
from stepprof.remote.recording import Recording

if TYPE_CHECKING:
    from stepprof.config import Policy
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.fleet import Fleet
    from stepprof.window import Window

__all__ = ["OWN_LOOP", "Bracket"]

OWN_LOOP = (
    "a synchronous block on the event loop that the engine lives on would wait for itself; "
    'write "async with stepprof.profile_step(…)" there'
)

SLACK_SECONDS = 1.0
"""What a wait is longer than the bound it waits for: the bound itself is kept on the loop."""


class Bracket:
    """One window over its engines, from the sending of the starts to the last answer.

    Args:
        fleet: the engines that are attached.
        window: the window.
        policy: what holds for its role.
        refuse: the running loop of a synchronous caller: engines that live on it could not answer while it waits, so that nothing is
            sent to them.
    """

    def __init__(
        self,
        fleet: Fleet,
        window: Window,
        policy: Policy,
        refuse: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._fleet = fleet
        self._window = window
        self._policy = policy
        self._refuse = refuse
        self._entries = Entries(fleet.origin, window, fleet.post)
        self._recordings: list[tuple[EngineTarget, Recording]] = []
        self._joins: list[tuple[Recording, dict[str, Any]]] = []
        self._inner: list[Inner] = []
        self._unanswered = 0
        self._closing = False
        self._cap: asyncio.TimerHandle | None = None
        self._started: concurrent.futures.Future[None] | None = None
        self._stopped: concurrent.futures.Future[None] | None = None

    # -- from whoever opens and closes the window

    def send_starts(self) -> None:
        """Have the starts sent."""
        self._started = remote_loop().submit(self._guarded(self._start()))

    def wait_started(self) -> None:
        """Wait until each engine has started or failed, or the bound is over."""
        _wait(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS)

    async def started(self) -> None:
        """`wait_started` for a coroutine."""
        await _await(self._started, self._policy.engine_start_timeout_seconds + SLACK_SECONDS)

    def send_stops(self, body_error: BaseException | None, *, partial: str | None = None) -> None:
        """Have the stops sent, once; also those of engines whose start has not been answered."""
        if self._stopped is None:
            self._stopped = remote_loop().submit(self._guarded(self._stop(body_error, partial)))

    def wait_stopped(self) -> None:
        """Wait until each engine has stopped, or the bound is over."""
        _wait(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def stopped(self) -> None:
        """`wait_stopped` for a coroutine."""
        await _await(self._stopped, self._policy.engine_stop_timeout_seconds + SLACK_SECONDS)

    async def ended(self, timeout: float) -> None:
        """`stopped` at the end of the run, for ``timeout`` seconds at most."""
        await _await(self._stopped, min(timeout, self._policy.engine_stop_timeout_seconds))

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
        windows = await self._places(free, reserve=True)
        results = await asyncio.gather(
            *(target.prepare(window) for target, window in zip(free, windows, strict=True)),
            return_exceptions=True,
        )
        for target, window, result in zip(free, windows, results, strict=True):
            if isinstance(result, BaseException):
                recording = target.recording
                if recording is None or recording.window is None or not recording.window.is_at(window):
                    remove_folder(window)
                logger.debug("arm refused", target=target.label, reason=str(result))

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        bound = self._policy.engine_start_timeout_seconds
        deadline = time.monotonic() + bound
        targets = await self._targets(bound)
        for target in await self._driven_here(list(filter(self._may_start, targets))):
            if target.recording is None or await self._is_free(target, deadline):
                self._claim(target)
        claimed = list(self._recordings)
        try:
            windows = await self._places([target for target, _ in claimed])
        except BaseException:
            for target, recording in claimed:
                target.release(recording)
            raise
        for (target, recording), window in zip(claimed, windows, strict=True):
            recording.finished.then(self._answered)
            self._unanswered += 1
            recording.task = loop.create_task(target.record(recording, window))
        await asyncio.sleep(0)  # the starts are on their way: from here on there is time
        self._entries.write_soon(targets)  # as lost
        if self._policy.max_seconds is not None:
            self._cap = loop.call_later(self._policy.max_seconds, self._look_at_caps)
        waiting = [recording.started for _, recording in self._recordings]
        if not await passed(waiting, deadline - time.monotonic()):
            for target, recording in self._recordings:
                target.give_up_start(recording, bound)
        await entered(self._inner, deadline - time.monotonic())

    async def _stop(self, body_error: BaseException | None, partial: str | None) -> None:
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
        ending = [recording for _, recording in self._recordings]
        for recording, entry in self._joins:
            entry["end_unix_ns"] = time.time_ns()
            if recording.stop.is_set():
                entry.update(status="partial", error="the window outlived the capture that it joined")
            elif self._window.step == recording.step:
                ending.append(recording)
        for recording in ending:
            recording.late = recording.late or partial
            recording.leave()
        waiting = [
            recording.finished for recording in ending if recording.stop.is_set() and recording.answered
        ]
        await passed(waiting, deadline - time.monotonic())
        for target, recording in self._recordings:
            if recording.stop.is_set():
                target.give_up_stop(recording, bound)
        self._entries.write_soon(target for target, _ in self._recordings)
        self._forget_if_over()

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
        except Exception as error:  # noqa: BLE001 - told in the log and in the manifest
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
                elif asking.exception() is not None:
                    problem = f"{engine.name}: {describe_error(asking.exception() or EOFError())}"
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
        if self._refuse is not None and target.driver.loop is self._refuse:
            logger.warning("engine not started", target=target.label, reason=OWN_LOOP)
            self._entries.add(target, status="skipped", error=OWN_LOOP)
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
        """Whether it can record. It joins what runs and waits for a hand-over; else it is skipped, and the manifest says why."""
        while (
            (recording := target.recording) is not None and not recording.running and not recording.given_up
        ):
            # its start, or its stop, is under way
            left = max(deadline - time.monotonic(), 0.0)
            if not await passed([recording.awaited], left):
                break
        if recording is None:
            return True
        if recording.running:
            capture = recording.window
            place = None if capture is None else {"step": capture.window.step, "stem": capture.stem}
            if target.is_rank:  # its own manifest says in which capture the window is
                place = None
            entry = self._entries.add(
                target, status="joined", error=None, start_unix_ns=time.time_ns(), capture=place
            )
            recording.join(self._window.step, entry, self._entries.save_later)
            self._joins.append((recording, entry))
            if capture is not None and is_inner(self._window, capture.window):
                self._inner.append(Inner(target.driver, replace(capture, window=self._window)))
            return False
        verb = "stop" if recording.answered else "start"
        self._entries.add(
            target,
            status="skipped",
            error=f"still {target.machine.state}: its {verb} of step {recording.step} has not been answered",
        )
        return False


def _wait(future: concurrent.futures.Future[None] | None, timeout: float) -> None:
    """Wait on a thread."""
    if future is not None:
        concurrent.futures.wait([future], timeout=timeout)


async def _await(future: concurrent.futures.Future[None] | None, timeout: float) -> None:
    """Wait in a coroutine: that the caller is cancelled never reaches the work."""
    if future is not None:
        await asyncio.wait([asyncio.wrap_future(future)], timeout=timeout)
