"""The registry of a session: the attached engines and ranks with their roles, and the windows over them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from stepprof.errors import StateError
from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.remote.core.announcer import Announcer
from stepprof.remote.core.blocked_loop import NOT_STARTED, OwnLoop, runs_on
from stepprof.remote.core.change_log import ChangeLog
from stepprof.remote.core.manifest_entries import remove_folder
from stepprof.remote.core.window_group import Bracket
from stepprof.remote.loop import in_thread, remote_loop
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.model import Window

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.engine_target import EngineTarget
    from stepprof.remote.core.manifest_entries import Entries
    from stepprof.remote.engine import Engine

EXPORT_SECONDS = 60.0
"""Timeout of the exports of an actor that is detached."""

TELL_SECONDS = 0.5
"""Seconds after which the wait at the end of the run is logged."""

SLACK_SECONDS = 0.2
"""How much longer the end of the run waits than the timeouts on stepprof's loop."""

MOST_LOGGED = 8
"""Number of engines that are named in the log line about a shutdown that waits."""


class Fleet:
    """The engines that are attached in this process. `changed` is called after each change that ``stepprof.state`` shows."""

    def __init__(
        self,
        origin: Origin,
        post: Callable[[Callable[[], object]], None],
        changed: Callable[[], object],
    ) -> None:
        self.origin = origin
        self.post = post
        self.changes = ChangeLog(post, changed)
        self.placing = asyncio.Lock()
        """Held while a window's folders are made: an arming and a start of the same window share them."""
        self.own_loop = OwnLoop()
        """Logs what was missed of engines on the event loop of synchronous code."""
        self.unsaved: set[Entries] = set()
        """Entries of windows whose answers are gathered, and soon written."""
        self._unused: list[tuple[EngineTarget, EngineWindow]] = []
        self._ending: str | None = None
        """Why a window that another thread enters now is stopped at once."""
        self.over = False
        """The run has ended: nothing is armed any more."""
        self._statuses: tuple[object, dict[str, str], tuple[str, ...]] = None, {}, ()
        self._announcer = Announcer()
        self.engines: tuple[Engine, ...] = ()
        self._brackets: set[Bracket] = set()
        self._leaving: dict[concurrent.futures.Future[None], Engine] = {}
        self._armed: dict[str | None, int] = {}

    # -- what is attached

    def follows(self, role: str | None) -> bool:
        """Return whether a window of this role reaches an engine or a rank in another process."""
        return any(engine.follows(role) for engine in self.engines)

    def shares(self, role: str | None, other: str | None) -> bool:
        """Whether an engine follows windows of both roles."""
        return any(engine.follows(role) and engine.follows(other) for engine in self.engines)

    def selected(self, role: str | None, policy: Policy) -> list[EngineTarget]:
        """Return the targets that the configuration selects in a window of this role; note their selected workers."""
        found = []
        following = [
            (target, engine)
            for engine in self.engines
            if engine.follows(role)
            for target in engine.targets
            if target.driver.kind != "spans" and (role is not None or target.is_rank)
        ]
        first = {True: 0, False: 0}
        for target, engine in sorted(following, key=lambda pair: pair[0].replica):
            if policy.ranks.all and engine.counts:
                target.workers = None
                found.append(target)
                continue
            owned = engine.owned(target, first[target.is_rank])
            first[target.is_rank] += target.width
            asked = frozenset(index for index, rank in enumerate(owned) if rank in policy.ranks)
            target.workers = None if len(asked) == len(owned) else asked
            if asked:
                found.append(target)
        return found

    @property
    def calm(self) -> bool:
        """Whether an unselected window needs no announcement: no engine is armed for a step that
        may not be entered, and none listens.
        """
        return not self._armed and not self._announcer.listeners

    def statuses(self) -> dict[str, str]:
        """Return the state of each engine, or its health if it is not ok. Do not change the result:
        it is cached until a state changes.
        """
        return self._known()[0]

    def awaited(self) -> tuple[str, ...]:
        """Return the pending reports of engines."""
        return self._known()[1]

    def _known(self) -> tuple[dict[str, str], tuple[str, ...]]:
        version, statuses, awaited = self._statuses
        if version is not self.changes.version:
            version = self.changes.version
            targets = [target for engine in self.engines for target in engine.targets]
            statuses = {
                target.label: target.machine.state if target.health == "ok" else target.health
                for target in targets
            }
            awaited = tuple(label for target in targets for label in target.awaiting.labels)
            self._statuses = version, statuses, awaited
        return statuses, awaited

    def describe(self) -> dict[str, dict[str, object]]:
        """Return the kind, name, host, state, health and roles of each engine, JSON-able."""
        return {
            target.label: {
                "kind": target.driver.kind,
                "name": target.driver.name,
                "host": target.driver.host,
                "state": target.machine.state,
                "health": target.health,
                "roles": ",".join(sorted({engine.role, *engine.also})),
            }
            for engine in self.engines
            for target in engine.targets
        }

    def add(self, engine: Engine) -> None:
        """Attach an engine: it takes part from the next arm or window on."""
        self.engines = (*self.engines, engine)
        self.regrouped()

    def remove(self, engine: Engine) -> None:
        """Detach an engine: stop its recording, and disarm."""
        self.engines = tuple(other for other in self.engines if other is not engine)
        self.regrouped()
        reason = "the engine was detached while it recorded"
        leaving = remote_loop().submit(_leave([engine], reason, EXPORT_SECONDS))
        self._leaving[leaving] = engine
        leaving.add_done_callback(lambda done: self._leaving.pop(done, None))

    def regrouped(self) -> None:
        """Note that the targets of an attachment have changed."""
        self._announcer.look(self.engines)
        self.changes.changed()

    def unused(self, target: EngineTarget, window: EngineWindow) -> None:
        """Remove a folder soon, because its window never used it."""
        self._unused.append((target, window))
        if len(self._unused) == 1:
            remote_loop().submit(self._remove_unused())

    async def _remove_unused(self) -> None:
        async with self.placing:
            found, self._unused = self._unused, []
            windows = [window for target, window in found if not target.uses(window)]
            if windows:
                await in_thread(_remove_folders, windows)

    # -- windows

    def arm(self, step: int, role: str | None, policy: Policy) -> None:
        """Prepare for an upcoming step. This is a hint: it never waits and never fails the caller."""
        self._armed[role] = step
        remote_loop().submit(self._arm(Bracket(self, Window(step=step, role=role), policy)))

    @staticmethod
    async def _arm(bracket: Bracket) -> None:
        try:
            await bracket.arm()
        except ours(Exception) as error:  # the window itself tries again, and reports it
            logger.debug("arm.refused", reason=describe_error(error))

    def pass_by(
        self, step: int, role: str | None, *, is_recorded: bool
    ) -> Sequence[concurrent.futures.Future[None]]:
        """Announce a window to the engines that listen, and disarm engines that were armed for an earlier step.

        Returns:
            The pending announcements; a recorded window waits for them for a moment.
        """
        for armed_role, armed in list(self._armed.items()):
            if armed < step:
                self._armed.pop(armed_role, None)
                remote_loop().call(self._disarm, armed_role, armed)
        return self._announcer.announce((step, role), is_recorded=is_recorded)

    def left(self) -> None:
        """Announce the end of a window to the engines that listen."""
        self._announcer.announce(None)

    def _disarm(self, role: str | None, step: int) -> None:
        for engine in self.engines:
            for target in engine.targets if engine.follows(role) else ():
                if target.armed is not None and target.armed.window.step <= step:
                    target.disarm(f"step {step} was never entered")

    def enter(
        self, window: Window, policy: Policy, loop: asyncio.AbstractEventLoop | None, *, strict: bool
    ) -> Bracket:
        """Enter a window of synchronous code: send its starts and block until they are answered,
        within the timeout.

        Args:
            loop: the event loop that the caller blocks meanwhile; engines that live on it cannot answer, and are skipped.
            strict: raise for such an engine.

        Raises:
            StateError: an engine lives on ``loop``, and ``strict``.
        """
        if strict:
            self._refuse_those_on(loop, window.role)
        bracket = self.begin(window, policy, blocked=loop)
        try:
            bracket.wait_started()
        except BaseException:
            bracket.send_stops(None, partial="interrupted while the window was entered")
            raise
        self.changes.publish()
        return bracket

    def _refuse_those_on(self, loop: asyncio.AbstractEventLoop | None, role: str | None) -> None:
        """Raise StateError if an engine of the role lives on this loop, unless it records already."""
        for engine in self.engines:
            for target in engine.targets if engine.follows(role) else ():
                recording = target.recording
                if runs_on(target, loop) and (recording is None or not recording.running):
                    raise StateError(f"{target.label}: {NOT_STARTED}")

    def begin(
        self, window: Window, policy: Policy, *, blocked: asyncio.AbstractEventLoop | None = None
    ) -> Bracket:
        """Send the starts of a window, and return at once. ``blocked``: the event loop that the caller will block until they are answered."""
        self._armed.pop(window.role, None)
        bracket = Bracket(self, window, policy, blocked)
        self._brackets.add(bracket)
        bracket.send_starts()
        if self._ending is not None:
            bracket.send_stops(None, partial=self._ending, blocked=blocked)
        return bracket

    def forget(self, bracket: Bracket) -> None:
        """Forget a window whose last answer has arrived."""
        self._brackets.discard(bracket)
        self.changes.changed()

    def send_stops(self, reason: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """At the end, stop every engine that records, and keep it as partial. ``loop``: the event
        loop that the caller blocks meanwhile.
        """
        self._ending = reason
        for bracket in list(self._brackets):
            bracket.send_stops(None, partial=reason, blocked=loop)

    def close(self, reason: str, timeout: float, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wait for the answers to `send_stops`, and disarm.

        Args:
            reason: why a capture that still runs is partial.
            timeout: seconds for exports that run in actors. For an engine that does not answer, its
                role's ``engine_stop_timeout_seconds`` applies if it is less.
            loop: the event loop that the caller blocks meanwhile. An engine that lives on it cannot answer, and is not
                awaited.
        """
        ending = remote_loop().submit(self._end(reason, timeout, loop))
        if not concurrent.futures.wait([ending], timeout=min(TELL_SECONDS, timeout)).done:
            self._log_waiting(timeout)
            left = max(timeout - TELL_SECONDS, 0.0)
            concurrent.futures.wait([ending], timeout=left + SLACK_SECONDS)

    def _log_waiting(self, timeout: float) -> None:
        targets = [target for engine in self.engines for target in engine.targets]
        silent = [target.label for target in targets if target.recording is not None] or [
            target.label for target in targets
        ]
        bound = max((engine.stop_seconds for engine in self.engines), default=timeout)
        logger.warning(
            "shutdown.waiting",
            targets=", ".join(silent[:MOST_LOGGED]) + (", …" if len(silent) > MOST_LOGGED else ""),
            answer_seconds=round(min(bound, timeout), 3),
            export_seconds=round(timeout, 3),
        )

    async def _end(self, reason: str, timeout: float, loop: asyncio.AbstractEventLoop | None) -> None:
        self.over = True
        ending = asyncio.ensure_future(self._end_all(reason, timeout, loop))
        await asyncio.wait([ending], timeout=timeout)
        # answers that were still being gathered
        for entries in list(self.unsaved):
            entries.save()
        self.changes.show()

    async def _end_all(self, reason: str, timeout: float, loop: asyncio.AbstractEventLoop | None) -> None:
        began = real_time.monotonic()
        await asyncio.gather(*(bracket.ended(timeout, loop) for bracket in self._brackets))
        leaving = [
            asyncio.wrap_future(each)
            for each, engine in list(self._leaving.items())
            if not any(runs_on(target, loop) for target in engine.targets)
        ]
        if leaving:
            await asyncio.wait(leaving, timeout=max(began + timeout - real_time.monotonic(), 0.0))
        spent = real_time.monotonic() - began
        async with self.placing:  # folders that are being made are known by then
            pass
        await _leave(self.engines, reason, timeout, spent, loop)
        await self._remove_unused()


def _remove_folders(windows: Iterable[EngineWindow]) -> None:
    for window in windows:
        remove_folder(window)


async def _leave(
    engines: Iterable[Engine],
    reason: str,
    timeout: float,
    spent: float = 0.0,
    blocked: asyncio.AbstractEventLoop | None = None,
) -> None:
    """Have engines leave. `spent`: seconds of their answer time that are used up. Engines on `blocked` cannot answer."""
    leaving = [
        (target, 0.0 if runs_on(target, blocked) else engine.stop_seconds)
        for engine in engines
        for target in engine.targets
    ]
    left = max(timeout - spent, 0.0)
    await asyncio.gather(
        *(
            target.leave(reason, answer_seconds=min(max(seconds - spent, 0.0), left), timeout=left)
            for target, seconds in leaving
        )
    )
