"""Find the process of an engine's server, and how it was started under nsys.

A server has the reports of the process that listens on its port; `/proc` shows which one that is. It
outlives the jobs that record it, so the number of its ranges is kept in a file next to its reports.
The process of another host, user or container cannot be read; then only the folder given to `attach`
is known.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.backends.nsys.process import Launch, launch_of, under_nsys
from stepprof.backends.nsys.reports import RangeCount
from stepprof.host.atomic_files import write_atomically
from stepprof.host.plain_files import read_plain
from stepprof.host.process_identity import process_start
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.remote.core.engine_files import ROOT, listening
from stepprof.remote.loop import in_thread
from stepprof.remote.nsys import Started, this_process

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.http.client import Client

SESSION = "NSYS_PROFILING_SESSION_ID"
"""The session of a process. A process that this one has started belongs to its session."""
_DIGITS = 18
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class KeptCount(RangeCount):
    """The counted ranges of a server's session: other jobs may have recorded it before."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _count(self) -> None:
        try:
            text = read_plain(self._path, _DIGITS)
            self.begun = max(self.begun, int(text)) if text.isdigit() else self.begun
        except ours(OSError):
            pass  # the first one, or no such file
        self.begun += 1
        self._keep()

    def withdraw(self, number: int) -> None:
        """Take back a range that was never begun."""
        super().withdraw(number)
        self._keep()

    def _keep(self) -> None:
        try:
            write_atomically(self._path, str(self.begun).encode())
        except ours(OSError) as error:
            logger.debug("nsys.ranges_uncounted", path=str(self._path), reason=str(error))


class NsysServer:
    """The process of one server, looked up again when it is replaced."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._counts: dict[Path, KeptCount] = {}
        self._nowhere = RangeCount()
        self._pid: int | None = None
        self._since: int | None = None

    async def started(self, window: EngineWindow) -> Started:
        """Return how it was started, as far as known."""
        return await in_thread(self._look, window)

    def _look(self, window: EngineWindow) -> Started:
        if self._client.same_host:
            if self._pid is None or process_start(self._pid) != self._since:
                self._pid = listener(self._client.address.port)
                self._since = None if self._pid is None else process_start(self._pid)
            environ = None if self._pid is None else environment_of(self._pid)
            if self._pid is not None and environ is not None:
                return self._of_process(window, self._pid, environ)
        if window.trace_dir is None:
            return Started(None, {}, self._nowhere)
        launch = Launch.alone_in(window.trace_dir)
        return Started(launch, {}, self._kept(window.trace_dir / ".stepprof-ranges"))

    def _of_process(self, window: EngineWindow, pid: int, environ: dict[str, str]) -> Started:
        if environ.get(SESSION) and environ.get(SESSION) == os.environ.get(SESSION):
            return this_process(window)
        launch = launch_of(window.nsys, environ, pid)
        if not under_nsys(environ):
            return Started(launch, environ, self._nowhere, pid, under=False)
        if launch.folder is None and window.trace_dir is None:
            return Started(None, environ, self._nowhere, pid)
        if launch.folder is None:
            launch = Launch.alone_in(window.trace_dir or Path())
        folder = launch.folder or Path()
        count = self._kept(folder / f".stepprof-ranges-{pid}-{self._since}")
        return Started(launch, environ, count, pid)

    def _kept(self, path: Path) -> KeptCount:
        return self._counts.setdefault(path, KeptCount(path))


def listener(port: int) -> int | None:
    """Return the process of this host that listens on a port; None: none that this user may inspect."""
    wanted = {inode for _, inode in listening(port)}
    found = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if wanted and any(socket in wanted for socket in _sockets(process))
    ]
    return min(found, default=None)  # its children may have inherited the socket


def _sockets(process: Path) -> list[str]:
    found = []
    with ignored(OSError):  # another user's process, or it has ended
        for link in (process / "fd").iterdir():
            with ignored(OSError):
                matched = _SOCKET.fullmatch(str(link.readlink()))
                found += [matched[1]] if matched else []
    return found


def environment_of(pid: int) -> dict[str, str] | None:
    """Return the environment of a process of this user or of root; None: it cannot be read, or
    another user controls its content.
    """
    process = Path(f"/proc/{pid}")
    try:
        if process.stat().st_uid not in (os.geteuid(), ROOT):
            return None
        text = (process / "environ").read_bytes().decode(errors="replace")
    except ours(OSError):
        return None
    return dict(part.partition("=")[::2] for part in text.split("\0") if "=" in part)
