"""The calls that the SGLang driver needs of an engine, which is an object of this process or a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from stepprof.remote.base import EngineWindow
    from stepprof.remote.core.statistics import Sample
    from stepprof.remote.engine_process import EngineProcess
    from stepprof.remote.sglang.request import Facts


class Link(ABC):
    """Calls to one engine.

    Args:
        name: the name in logs, messages and the manifest.
        key: identifies the engine.
        process: the engine's process.
    """

    runs_loop = False
    """Whether a call may run the engine's event loop."""

    def __init__(self, name: str, key: str, process: EngineProcess) -> None:
        self.name = name
        self.key = key
        self.process = process

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of this process that the engine lives on; None: none."""
        return None

    @property
    def late(self) -> str | None:
        """Why the running capture began late; None: it did not."""
        return None

    def allow(self, seconds: float) -> None:
        """Let calls run the engine's event loop for this long from now on, because the caller waits meanwhile."""
        return

    async def release(self) -> None:
        """Run the engine's event loop no longer: the caller continues."""
        return

    @property
    def answers(self) -> bool:
        """Whether a call is answered while the caller continues. A synchronous engine answers only while the caller waits."""
        return True

    def describe(self) -> Facts | None:
        """Return the engine's properties without asking it; None: it must be asked."""
        return None

    @abstractmethod
    async def facts(self, window: EngineWindow) -> Facts:
        """Return the engine's properties. Raises EngineFailure: it must not be started."""

    @abstractmethod
    async def records(self, fields: Mapping[str, Any]) -> str | None:
        """Find out whether the engine records, by a start for a step that never comes.

        Returns:
            The engine's refusal: it records already. None: it accepted the start, so it did not record.

        """

    async def statistics(self) -> Sample | None:
        """Return the engine's counters; None: unknown."""
        return None

    @abstractmethod
    async def start(self, fields: Mapping[str, Any]) -> None:
        """Send a start. Raises EngineFailure."""

    @abstractmethod
    async def stop(self) -> bool | None:
        """Send a stop. True: it recorded; False: it reports that it did not; None: it refused without a reason."""

    def withdraw(self) -> bool:
        """Withdraw a start that has not been sent yet; return whether there was one."""
        return False
