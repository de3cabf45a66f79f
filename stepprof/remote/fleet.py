"""Which engines and ranks elsewhere are attached in this process, and for which role."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from stepprof.errors import StateError
from stepprof.log import logger
from stepprof.records import Origin, describe_error
from stepprof.remote.entries import remove_folder
from stepprof.remote.fanout import OWN_LOOP, Bracket
from stepprof.remote.loop import in_thread, remote_loop
from stepprof.window import Window

if TYPE_CHECKING:
    from stepprof.config import Policy
    from stepprof.remote.attach import Engine
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.engine import EngineTarget, HealthChange

__all__ = ["Fleet"]

LEAVE_SECONDS = 60.0
"""How long an engine that is detached may take to hand over what it has."""

SHOW_SECONDS = 0.01
"""For how long changes are gathered before they are shown: a thousand engines answer one after the other."""

TOLD = 8
"""Engines that get a line of their own when they fall ill together; more are one line."""


class Fleet:
    """The engines that are attached in this process.

    Args:
        origin: who writes the manifests.
        post: has work done on another thread than stepprof's loop.
        changed: called after each change that ``stepprof.state`` shows.
    """

    def __init__(
        self,
        origin: Origin,
        post: Callable[[Callable[[], object]], None],
        changed: Callable[[], object],
    ) -> None:
        self.origin = origin
        self.post = post
        self._publish = changed
        self.placing = asyncio.Lock()
        """Held while a window's folders are made: an arming and a start of the same window share them."""
        self._publishing = False
        self._version = object()
        self._statuses: tuple[object, dict[str, str], tuple[str, ...]] = None, {}, ()
        self._lines: list[dict[str, object]] = []
        self._health: list[HealthChange] = []
        self._listeners: list[tuple[Engine, Callable[..., Any]]] = []
        self._told: tuple[int, str | None] | None = None
        self.engines: tuple[Engine, ...] = ()
        self._brackets: set[Bracket] = set()
        self._armed: dict[str | None, int] = {}

    # -- what is attached

    def follows(self, role: str | None) -> bool:
        """Whether a window of this role reaches an engine or a rank elsewhere."""
        return any(engine.follows(role) for engine in self.engines)

    def selected(self, role: str | None, policy: Policy) -> list[EngineTarget]:
        """The targets that the configuration asks for in a window of this role; notes which of their workers."""
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
        """Whether a window that is not selected has nothing to tell: nobody is armed for a step that may not come, nobody listens."""
        return not self._armed and not self._listeners

    def statuses(self) -> dict[str, str]:
        """For each engine its state, or its health where that is what is worth knowing. Not to be changed: it is kept until one changes."""
        return self._known()[0]

    def awaited(self) -> tuple[str, ...]:
        """What engines' windows still wait for."""
        return self._known()[1]

    def _known(self) -> tuple[dict[str, str], tuple[str, ...]]:
        version, statuses, awaited = self._statuses
        if version is not self._version:
            version = self._version
            targets = [target for engine in self.engines for target in engine.targets]
            statuses = {
                target.label: target.machine.state if target.health == "ok" else target.health
                for target in targets
            }
            awaited = tuple(label for target in targets for label in target.awaiting.labels)
            self._statuses = version, statuses, awaited
        return statuses, awaited

    def describe(self) -> dict[str, dict[str, object]]:
        """For each engine what it is, where, and how it is: JSON-able."""
        return {
            target.label: {
                "kind": target.driver.kind,
                "name": target.driver.name,
                "host": target.driver.host,
                "state": target.machine.state,
                "health": target.health,
            }
            for engine in self.engines
            for target in engine.targets
        }

    def add(self, engine: Engine) -> None:
        """Attach: from the next arm or window on it takes part."""
        self.engines = (*self.engines, engine)
        self._look_who_listens()
        self.changed()

    def remove(self, engine: Engine) -> None:
        """Detach: what it records is stopped, what was armed is forgotten."""
        self.engines = tuple(other for other in self.engines if other is not engine)
        self._look_who_listens()
        remote_loop().submit(_leave([engine], "the engine was detached while it recorded", LEAVE_SECONDS))
        self.changed()

    def changed(self) -> None:
        """Something that ``stepprof.state`` shows has changed: shown soon, once for all that changes together."""
        self._version = object()
        if not self._publishing:
            self._publishing = True
            remote_loop().call(self._show_soon)

    def _show_soon(self) -> None:
        asyncio.get_running_loop().call_later(SHOW_SECONDS, self._show)

    def tell_transition(self, line: dict[str, object]) -> None:
        """A transition: its line is written soon, on another thread, since a thousand of them would hold up the calls that they tell of."""
        self._lines.append(line)

    def tell_health(self, change: HealthChange) -> None:
        """An engine's health has changed: told soon, together with others of the same."""
        self._health.append(change)

    def _show(self) -> None:
        self._publishing = False
        self._publish()
        lines, self._lines = self._lines, []
        if lines:
            self.post(partial(_tell_transitions, lines))
        changes, self._health = self._health, []
        for health in dict.fromkeys(change.after for change in changes):
            _tell([change for change in changes if change.after == health])

    def _look_who_listens(self) -> None:
        """Sessions elsewhere that want to know which step runs: their drivers have a method ``announce``."""
        self._listeners = [
            (engine, target.driver.announce)
            for engine in self.engines
            for target in engine.targets
            if hasattr(target.driver, "announce")
        ]

    # -- windows

    def arm(self, step: int, role: str | None, policy: Policy) -> None:
        """Prepare for a step that is about to come. A hint: it never waits and never fails the caller."""
        self._armed[role] = step
        remote_loop().submit(self._arm(Bracket(self, Window(step=step, role=role), policy)))

    @staticmethod
    async def _arm(bracket: Bracket) -> None:
        try:
            await bracket.arm()
        except Exception as error:  # noqa: BLE001 - the window itself tries again, and tells
            logger.debug("arm refused", reason=describe_error(error))

    def pass_by(self, step: int, role: str | None) -> concurrent.futures.Future[None] | None:
        """A window comes in: who listens is told; engines that were armed for a step before it are armed no more.

        Returns:
            What is done when everybody has been told, if anybody is; a recorded window waits for it for a moment.
        """
        for armed_role, armed in list(self._armed.items()):
            if armed < step:
                self._armed.pop(armed_role, None)
                remote_loop().call(self._disarm, armed_role, armed)
        if not self._listeners or self._told == (step, role):
            return None
        self._told = step, role
        # of two steps that overlap in different roles, each is told to those whose business it is
        told = [tell for engine, tell in self._listeners if role is None or engine.role == role]
        return remote_loop().submit(_announce(told, step, role)) if told else None

    def _disarm(self, role: str | None, step: int) -> None:
        for engine in self.engines:
            for target in engine.targets if engine.follows(role) else ():
                if target.armed is not None and target.armed.window.step <= step:
                    self.post(partial(remove_folder, target.armed))
                    target.disarm(f"step {step} never came")

    def enter(
        self, window: Window, policy: Policy, loop: asyncio.AbstractEventLoop | None, *, strict: bool
    ) -> Bracket:
        """A window of synchronous code: its starts are sent, and waited for where that blocks nobody's event loop.

        Args:
            window: the window.
            policy: what holds for its role.
            loop: the event loop that the caller blocks; engines that live on it cannot answer, and are skipped.
            strict: raise for such an engine.

        Raises:
            StateError: an engine lives on ``loop``, and ``strict``.
        """
        if loop is not None and strict:
            for engine in self.engines:
                for target in engine.targets if engine.follows(window.role) else ():
                    if target.driver.loop is loop:
                        raise StateError(f"{target.label}: {OWN_LOOP}")
        bracket = self.begin(window, policy, refuse=loop)
        try:
            if loop is None:
                bracket.wait_started()
        except BaseException:
            bracket.send_stops(None, partial="interrupted while the window came in")
            raise
        self._publish()
        return bracket

    def begin(
        self, window: Window, policy: Policy, *, refuse: asyncio.AbstractEventLoop | None = None
    ) -> Bracket:
        """Send the starts of a window, and return at once."""
        self._armed.pop(window.role, None)
        bracket = Bracket(self, window, policy, refuse)
        self._brackets.add(bracket)
        bracket.send_starts()
        return bracket

    def forget(self, bracket: Bracket) -> None:
        """Its last answer has come."""
        self._brackets.discard(bracket)
        self.changed()

    def send_stops(self, reason: str) -> None:
        """At the end: stop what records, and keep it as partial."""
        for bracket in list(self._brackets):
            bracket.send_stops(None, partial=reason)

    def close(self, reason: str, timeout: float) -> None:
        """After `send_stops`: wait for the answers ``timeout`` seconds at most, forget what is armed."""
        deadline = time.monotonic() + timeout
        for bracket in list(self._brackets):
            bracket.wait_stopped(max(deadline - time.monotonic(), 0.0))
        if self.engines:
            left = max(deadline - time.monotonic(), 0.0)
            leaving = remote_loop().submit(self._end(reason, left))
            concurrent.futures.wait([leaving], timeout=left + 0.1)

    async def _end(self, reason: str, timeout: float) -> None:
        await _leave(self.engines, reason, timeout)
        self._show()  # what was still being gathered


async def _announce(listeners: list[Callable[..., Any]], step: int, role: str | None) -> None:
    results = await asyncio.gather(*(tell(step, role) for tell in listeners), return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            logger.debug("step not announced", step=step, reason=describe_error(result))


def _tell_transitions(lines: list[dict[str, object]]) -> None:
    for line in lines:
        logger.info("transition", **line)


def _tell(changes: list[HealthChange]) -> None:
    """One line for each of a few engines, one line for many."""
    first = changes[0]
    say, event = (
        (logger.info, "engine healthy") if first.after == "ok" else (logger.warning, "engine unhealthy")
    )
    if len(changes) > TOLD:
        labels = ", ".join(change.label for change in changes[:TOLD])
        say(event, count=len(changes), targets=f"{labels}, …", health=first.after, reason=first.reason)
        return
    for change in changes:
        say(event, target=change.label, name=change.name, before=change.before, health=change.after, reason=change.reason)  # fmt: skip


async def _leave(engines: Iterable[Engine], reason: str, timeout: float) -> None:
    targets = [target for engine in engines for target in engine.targets]
    armed = [target.armed for target in targets if target.armed is not None]
    await asyncio.gather(*(target.leave(reason, timeout) for target in targets))
    if armed:
        await in_thread(_remove_folders, armed)


def _remove_folders(windows: Iterable[EngineWindow]) -> None:
    for window in windows:
        remove_folder(window)
