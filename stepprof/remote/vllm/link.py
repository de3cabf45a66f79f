"""The calls that the vLLM driver needs of an engine, which is an object of this process or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprof.log import logger
from stepprof.remote.vllm.files import Workers

if TYPE_CHECKING:
    import asyncio

    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.engine_process import EngineProcess
    from stepprof.remote.vllm.arguments import Settings
    from stepprof.remote.vllm.folder import TraceFolder


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
        called: the name in messages, with its kind.
        process: the engine's process.
    """

    def __init__(self, name: str, key: str, called: str, process: EngineProcess) -> None:
        self.name = name
        self.key = key
        self.called = called
        self.process = process
        self._logged: set[str] = set()

    @property
    def elsewhere(self) -> str:
        """Where its traces are if they are not visible from here."""
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
        """Return its processes, as far as known."""
        return Workers()

    @abstractmethod
    async def facts(self, window: EngineWindow) -> Facts:
        """Return its properties. Raises EngineFailure: it cannot be recorded, or not with the window's options."""

    @abstractmethod
    async def place(self, window: EngineWindow, settings: Settings) -> TraceFolder | None:
        """Return the folder of its traces, prepared; None: it is not visible from here. Raises
        EngineFailure: it cannot be used.
        """

    async def statistics(self) -> Sample | None:
        """Return the engine's counters; None: unknown."""
        return None

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

    def warn(self, reason: str) -> None:
        """Log a limitation once."""
        if reason not in self._logged:
            self._logged.add(reason)
            logger.warning("engine.limited", name=self.name, reason=reason)
