"""What the vLLM driver needs of an engine, whether it is an object of this process or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.remote.vllm.files import Workers

if TYPE_CHECKING:
    import asyncio

    from stepprof.remote.base import Clock, EngineWindow
    from stepprof.remote.core.owner_slots import Slot
    from stepprof.remote.nsys.engine import Started
    from stepprof.remote.vllm.arguments import Settings
    from stepprof.remote.vllm.folder import TraceFolder

__all__ = ["Facts", "Link"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of an engine when it was armed."""

    settings: Settings
    takes: Container[str]
    """The parameters of its ``start_profile``."""


class Link(ABC):
    """Calls to one engine.

    Args:
        name: the name in logs and the manifest.
        key: identifies the engine.
        called: the name in messages, with what it is.
    """

    def __init__(self, name: str, key: str, called: str) -> None:
        self.name = name
        self.key = key
        self.called = called
        self._told: set[str] = set()

    @property
    @abstractmethod
    def host(self) -> str | None:
        """The host of the engine."""

    @property
    def same_host(self) -> bool:
        """Whether the engine has the clock of this process."""
        return True

    @property
    def elsewhere(self) -> str:
        """Where its traces are if they cannot be seen from here."""
        return ""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of this process that the engine lives on; None: none."""
        return None

    @property
    def inside(self) -> bool:
        """Whether the engine's worker is this process."""
        return False

    @property
    def dead(self) -> bool:
        """Whether the engine is known to be dead."""
        return False

    def require_alive(self) -> None:
        """Raise EngineFailure if the engine is known to be dead."""
        return

    def processes(self) -> Workers:
        """Return its processes, as far as they are known."""
        return Workers()

    @abstractmethod
    async def facts(self, window: EngineWindow) -> Facts:
        """Return its properties. Raises EngineFailure: it cannot be recorded, or not as the window asks."""

    @abstractmethod
    async def place(self, window: EngineWindow, settings: Settings) -> TraceFolder | None:
        """Return the folder of its traces, prepared; None: it cannot be seen from here. Raises EngineFailure: it cannot be used."""

    @abstractmethod
    def slot(self, window: EngineWindow, place: TraceFolder | None) -> Slot:
        """Return where its drivers note which of them records."""

    @abstractmethod
    async def nsys(self, window: EngineWindow) -> Started:
        """Return how its process was started under nsys."""

    @abstractmethod
    async def start(self, given: Mapping[str, object]) -> None:
        """Call ``start_profile``. Raises EngineFailure."""

    @abstractmethod
    async def stop(self) -> None:
        """Call ``stop_profile``: its files are written when it returns. Raises EngineFailure."""

    async def leave(self) -> None:
        """Stop a capture that may not run. Raises EngineFailure."""
        await self.stop()

    async def is_asleep(self) -> bool:
        """Return whether the engine sleeps, if that is known."""
        return False

    @abstractmethod
    async def clock(self) -> Clock | None:
        """Compare its clock with that of this process."""

    def warn(self, reason: str) -> None:
        """Log a limitation once."""
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("engine.limited", name=self.name, reason=reason)
