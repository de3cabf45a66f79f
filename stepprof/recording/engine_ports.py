"""The protocols for engines that the session needs: their registry, and the engines that follow one
window. `stepprof.remote` implements them, so that the session imports no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from stepprof.config.config import Policy
    from stepprof.recording.selector import Selector
    from stepprof.run.manifest_writer import Origin
    from stepprof.run.model import Window


class WindowEngines(Protocol):
    """The engines that follow one window."""

    @property
    def stops_elsewhere(self) -> bool:
        """Return whether training may continue before their stops are answered: each is an engine in another process."""

    async def started(self) -> None:
        """Wait until their starts are answered, without blocking the event loop."""

    async def stopped(self) -> None:
        """Wait until their stops are answered, without blocking the event loop."""

    def send_stops(
        self,
        body_error: BaseException | None,
        *,
        partial: str | None = None,
        blocked: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Send their stops; ``partial``: the reason why the window is partial; ``blocked``: the loop that the caller blocks."""

    def wait_stopped(self) -> None:
        """Block until their stops are answered."""


class EngineRegistry(Protocol):
    """The engines that are attached in this process."""

    @property
    def calm(self) -> bool:
        """Return whether the engines need no news of a window that is not selected."""

    def shares(self, role: str | None, other: str | None) -> bool:
        """Return whether an engine follows windows of both roles."""

    def follows(self, role: str | None) -> bool:
        """Return whether windows of this role reach an engine."""

    def arm(self, step: int, role: str | None, policy: Policy) -> None:
        """Prepare them for an upcoming step."""

    def pass_by(
        self, step: int, role: str | None, *, is_recorded: bool
    ) -> Sequence[concurrent.futures.Future[None]]:
        """Announce that a window is entered; return the pending announcements."""

    def left(self) -> None:
        """Note that a window has ended."""

    def enter(
        self, window: Window, policy: Policy, loop: asyncio.AbstractEventLoop | None, *, strict: bool
    ) -> WindowEngines:
        """Start those that follow a window, and block until they have answered."""

    def begin(self, window: Window, policy: Policy) -> WindowEngines:
        """Send the starts of those that follow a window."""

    def statuses(self) -> dict[str, str]:
        """Return the state of each, or its health if that is not ok."""

    def awaited(self) -> tuple[str, ...]:
        """Return the pending work of their windows."""

    def describe(self) -> dict[str, dict[str, object]]:
        """Describe each engine, its kind, place and driver: JSON-able."""

    def send_stops(self, reason: str, loop: asyncio.AbstractEventLoop | None) -> None:
        """At the end, stop every engine that records."""

    def close(self, reason: str, timeout: float, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wait for the answers, and disarm."""


@dataclass(frozen=True, slots=True)
class EngineHost:
    """What a session offers to the engines attached to it."""

    origin: Origin
    selector: Selector
    post: Callable[[Callable[[], object]], None]
    """Runs a job on the background thread."""
    changed: Callable[[], None]
    """Called after each change that ``stepprof.state`` shows."""


Join = Callable[[EngineHost, "EngineRegistry | None"], EngineRegistry]
"""Adds an engine to the registry of a session, which it creates if there is none. Raises ConfigError."""

waiting: dict[object, Join] = {}
"""Engines that were attached before there was a session; the next session takes them over."""
