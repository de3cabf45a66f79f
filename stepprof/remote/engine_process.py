"""The process of an engine: this process, or the one that answers at a URL. Its host, clock, user and nsys session follow from that."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from stepprof.remote.base import Clock
from stepprof.remote.core.engine_files import user_of_server
from stepprof.remote.core.ownership import FilePlace, MemoryPlace, place_next_to_the_runs
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys import Started, this_process
from stepprof.remote.nsys_server import NsysServer

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof.remote.base import EngineWindow
    from stepprof.remote.http.client import Client


class OwnProcess:
    """This process: it holds the engine object, and the engine's workers are its children."""

    same_host = True

    def __init__(self, key: str) -> None:
        self._key = key

    @property
    def host(self) -> str:
        """Return this host."""
        return socket.gethostname()

    async def clock(self) -> Clock:
        """Return the clock of this host."""
        return Clock(socket.gethostname(), 0, 0, "same-host")

    async def nsys(self, window: EngineWindow) -> Started:
        """Return how this process was started under nsys."""
        return this_process(window)

    def place(self, window: EngineWindow, shared: Path | None) -> MemoryPlace:
        """Return the place for the driver that records, in the memory of this process."""
        return MemoryPlace(self._key)


class ServerProcess:
    """The process that answers at a URL."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._nsys = NsysServer(client)

    @property
    def host(self) -> str | None:
        """Return its host."""
        return self._client.host

    @property
    def same_host(self) -> bool:
        """Return whether it is known to run on this host."""
        return bool(self._client.same_host)

    async def user(self) -> int | None:
        """Return its user; None: unknown, as on another host."""
        return await in_thread(user_of_server, self._client.address.port) if self.same_host else None

    async def clock(self) -> Clock | None:
        """Return the clock of this host if the server is here; None: its first trace shows its clock (`stepprof.remote.core.trace_times`)."""
        return Clock(socket.gethostname(), 0, 0, "same-host") if self.same_host else None

    async def nsys(self, window: EngineWindow) -> Started:
        """Return how it was started under nsys."""
        return await self._nsys.started(window)

    def place(self, window: EngineWindow, shared: Path | None) -> FilePlace:
        """Return the place for the driver that records: the file that all drivers see if there is one, else a file next to the runs."""
        return place_next_to_the_runs(window, self._client.key) if shared is None else FilePlace(shared)
