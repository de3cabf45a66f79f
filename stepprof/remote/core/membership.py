"""Choose the engines of one window: those that are selected, free and driven by this process, and
those that join a running capture. Everything runs on stepprof's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.core.blocked_loop import NOT_STARTED, OwnLoop, runs_on
from stepprof.remote.core.engine_capture import Recording
from stepprof.remote.core.event import passed
from stepprof.remote.core.manifest_entries import Entries
from stepprof.remote.engine import Registry
from stepprof.remote.loop import drop_result, in_thread
from stepprof.run.manifest_writer import describe_error
from stepprof.run.reasons import ReasonCode

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.remote.base import EngineDriver, EngineWindow
    from stepprof.remote.core.engine_target import EngineTarget
    from stepprof.run.manifest_writer import Origin
    from stepprof.run.model import Window
    from stepprof.run.schema import EngineEntry


class Fleet(Registry, Protocol):
    """The engines that are attached, as one window sees them."""

    origin: Origin
    """The identity of the process that writes the manifests."""
    post: Callable[[Callable[[], object]], None]
    """Runs a job on another thread than stepprof's loop."""
    unsaved: set[Entries]
    """The entries that will be written in a moment."""
    placing: asyncio.Lock
    """Held while the folders of a window are made."""
    own_loop: OwnLoop
    """Logs what was missed of engines on the event loop of synchronous code."""
    over: bool
    """Whether the run has ended."""

    def selected(self, role: str | None, policy: Policy) -> list[EngineTarget]:
        """Return the targets that the configuration selects in a window of this role."""

    def forget(self, bracket: Any) -> None:
        """Note that the last answer of a window has arrived."""


class Inner:
    """One rank's part of a role's window inside a step's window, so that its regions belong to the role.

    The rank is asked to enter at once. Made on stepprof's own loop.
    """

    def __init__(self, driver: EngineDriver, window: EngineWindow) -> None:
        self._driver = driver
        self._window = window
        self.entering = asyncio.ensure_future(self._ask("enter", driver.enter))

    async def exit(self) -> None:
        """Have the rank leave it. Raises nothing."""
        await asyncio.wait({self.entering})
        await self._ask("exit", self._driver.exit)

    async def _ask(self, verb: str, act: Callable[[EngineWindow], Awaitable[None]]) -> None:
        try:
            await act(self._window)
        except ours(Exception) as error:  # a plug-in may raise anything; the rank's capture continues
            logger.warning(
                "actor.role_failed",
                verb=verb,
                name=self._driver.name,
                step=self._window.window.step,
                role=self._window.window.role,
                reason=describe_error(error),
            )


class Members:
    """The engines of one window."""

    def __init__(
        self,
        fleet: Fleet,
        window: Window,
        policy: Policy,
        blocked: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._fleet = fleet
        self._window = window
        self._policy = policy
        self._blocked = blocked
        self.entries = Entries(fleet.origin, window, fleet.post, fleet.unsaved)
        self.recordings: list[tuple[EngineTarget, Recording]] = []
        """The targets that record for this window."""
        self.joins: list[tuple[EngineTarget, Recording, EngineEntry]] = []
        """The targets that record already, with this window's entry."""
        self._inner: list[Inner] = []
        """The ranks among those, which enter this window too."""
        self.closing = False
        """Whether the window is over, or was abandoned while it began."""

    async def targets(self, bound: float | None = None) -> list[EngineTarget]:
        """Return the selected targets. Lists and callables are asked for their current engines."""
        role = self._window.role
        engines = [engine for engine in self._fleet.engines if engine.follows(role)]
        asked = {asyncio.ensure_future(engine.ask_again()): engine for engine in engines if engine.changes}
        if asked:
            _, pending = await asyncio.wait(asked, timeout=bound)
            for asking, engine in asked.items():
                if asking in pending:
                    asking.add_done_callback(drop_result)
                    problem = f"{engine.name}: the engines could not be listed within {bound:.3g} s"
                elif asking.cancelled():
                    problem = f"{engine.name}: the call that lists the engines was cancelled"
                elif (error := asking.exception()) is not None:
                    problem = f"{engine.name}: {describe_error(error)}"
                else:
                    continue
                logger.warning("engine.unknown", role=role, reason=problem)
                if not engine.targets:  # otherwise the known engines stay, and report for themselves
                    self.entries.add(None, status="failed", code=ReasonCode.ENGINES_UNKNOWN, error=problem)
        return self._fleet.selected(role, self._policy)

    async def places(self, targets: list[EngineTarget], *, reserve: bool = False) -> list[EngineWindow]:
        """Return where the files of each target belong: the folder that it is armed for, or being armed for, else a new one."""
        async with self._fleet.placing:
            places = [target.prepared_for(self._window) for target in targets]
            without = [target for target, place in zip(targets, places, strict=True) if place is None]
            made = iter(await in_thread(self.entries.places, without) if without else ())
            windows = [
                self.entries.now(target, place or next(made), self._policy)
                for target, place in zip(targets, places, strict=True)
            ]
            if reserve:
                for target, window in zip(targets, windows, strict=True):
                    target.reserve(window)
        return windows

    async def claim(self, targets: list[EngineTarget], deadline: float) -> None:
        """Claim the targets that can record. The others join a running capture, or their entries say why not."""
        for target in await self._driven_here(list(filter(self._may_start, targets))):
            if await self._is_free(target, deadline):
                self._claim(target)

    def _may_start(self, target: EngineTarget) -> bool:
        """Return whether a target may be started at all; if not, write the reason into the manifest."""
        if target.driver.inside:
            reason = "its worker is this very process: its work is in this process's own capture"
            self.entries.add(target, status="joined", code=ReasonCode.SAME_PROCESS, error=reason)
            return False
        return True

    async def _driven_here(self, targets: list[EngineTarget]) -> list[EngineTarget]:
        """Return the targets that this process drives: if several processes attach an engine, one drives it."""
        world = self._fleet.origin.world_size
        if world is None or world < 2:
            return targets
        shared = [target for target in targets if not target.driver.key.startswith("object:")]
        if not shared:
            return targets
        holders = await in_thread(self.entries.take, shared)
        mine = []
        for target in targets:
            holder = holders.get(id(target))
            if holder is None:
                mine.append(target)
            else:
                driver = f"{holder.get('host', 'another host')}, pid {holder.get('pid', 'unknown')}"
                self.entries.add(
                    target,
                    status="joined",
                    code=ReasonCode.DRIVEN_ELSEWHERE,
                    error=f"driven by another process ({driver})",
                )
        return mine

    def _claim(self, target: EngineTarget) -> None:
        """Reserve the engine for this window: another window that begins at the same time finds it taken."""
        recording = Recording(self.entries.add(target), self.entries.save_later, self._window.step)
        recording.closing = self.closing
        target.recording = recording
        self.recordings.append((target, recording))

    async def _is_free(self, target: EngineTarget, deadline: float) -> bool:
        """Return whether a target can record. It joins a running capture and waits for a pending
        start or stop; else it is skipped, with a reason in the manifest.
        """
        blocked = runs_on(target, self._blocked)
        if not blocked:
            await self._settled(target, deadline)
        recording = target.recording
        if recording is not None and recording.running:
            self._join(target, recording)
        elif blocked:
            self._fleet.own_loop.warn_not_started(target)
            self.entries.add(target, status="skipped", code=ReasonCode.NOT_READY, error=NOT_STARTED)
        elif recording is None:
            return True
        else:
            why = f"still {target.machine.state}: {recording.unanswered}"
            self.entries.add(target, status="skipped", code=ReasonCode.BUSY, error=why)
        return False

    @staticmethod
    async def _settled(target: EngineTarget, deadline: float) -> None:
        """Wait while the engine's start or stop for an earlier window is pending."""
        while (recording := target.recording) is not None and not (recording.running or recording.timed_out):
            left = max(deadline - real_time.monotonic(), 0.0)
            if not await passed([recording.awaited], left):
                return

    def _join(self, target: EngineTarget, recording: Recording) -> None:
        """Join the running capture."""
        capture, window = recording.window, self._window
        place = None
        if capture is not None and not target.is_rank:  # the rank's own manifest has the window
            place = {"step": capture.window.step, "stem": capture.stem}
        entry = self.entries.add(target, status="joined", code=None, error=None)
        entry.update(start_unix_ns=real_time.time_ns(), capture=place)
        recording.join(window.step, entry, self.entries.save_later)
        self.joins.append((target, recording, entry))
        if capture is None or window.role is None:
            return
        if capture.window.step == window.step and capture.window.role is None:
            self._inner.append(Inner(target.driver, replace(capture, window=window)))

    async def inner_entered(self, timeout: float) -> None:
        """Wait until the ranks have entered the inner window, ``timeout`` seconds at most."""
        if self._inner:
            await asyncio.wait([each.entering for each in self._inner], timeout=max(timeout, 0.0))

    async def exit_inner(self, timeout: float) -> None:
        """Have the ranks leave it, and wait ``timeout`` seconds at most."""
        if self._inner:
            await asyncio.wait([asyncio.ensure_future(each.exit()) for each in self._inner], timeout=timeout)
