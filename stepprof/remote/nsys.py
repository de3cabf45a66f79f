"""An engine's part in a capture of nsys: the engine marks a range, and its report is found, moved
and listed like a rank's.

nsys names a report after the process that it started and the number of the range. The reports of an
engine object are those of this process's session, whichever child calls `cudaProfilerStart`. All
ranges of one session are one: an engine inside this process's own capture is in its report.

A server has the reports of the process that listens on its port; `/proc` shows which one that is. It
outlives the jobs that record it, so the number of its ranges is kept in a file next to its reports.
The process of another host, user or container cannot be read; then only the folder given to `attach`
is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.backends.nsys.process import Launch, launch_of, under_nsys
from stepprof.backends.nsys.reports import RangeCount, Report, ranges
from stepprof.backends.nsys.secrets import warn_of_secrets
from stepprof.host.atomic_files import write_atomically
from stepprof.host.plain_files import read_plain
from stepprof.host.process_identity import process_start
from stepprof.log import logger
from stepprof.remote.base import Stopped
from stepprof.remote.core.engine_files import ROOT, listening
from stepprof.remote.loop import in_thread
from stepprof.run.model import Capture

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow
    from stepprof.remote.http.client import Client

NAME = "engine"
"""The name of its report in the engine's folder; it covers all ranks."""

ELSEWHERE = (
    "recorded by nsys, if the engine was started under it. Its report is where that command writes it, which cannot be seen from here. "
    "If no other reports are in that folder, name it: attach(…, trace_dir=…)"
)
NOT_STARTED = (
    "the engine was not started under nsys; prefix its command with stepprof.backends.nsys.backend.nsys_command(config, roles=[…]), or make its "
    "Ray actor with stepprof.backends.nsys.backend.ray_runtime_env(config, roles=[…])"
)

SESSION = "NSYS_PROFILING_SESSION_ID"
"""The session of a process. A process that this one has started belongs to its session."""
_DIGITS = 18
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Started:
    """How the process of an engine was started under nsys."""

    launch: Launch | None
    """None: its reports are not visible from here."""
    environ: Mapping[str, str]
    """The session of that process; empty if unknown."""
    count: RangeCount
    pid: int | None = None
    under: bool = True
    """Whether nsys started it; True if unknown."""


def this_process(window: EngineWindow) -> Started:
    """Return how this process was started: an engine object's workers are its children."""
    launch = launch_of(window.nsys, os.environ)
    return Started(launch, os.environ, ranges, os.getpid(), under_nsys(os.environ))


class NsysPart:
    """An engine's part in one range, from its start to its report."""

    def __init__(
        self, window: EngineWindow, started: Started, number: int, began: float, *, sent: bool
    ) -> None:
        self._window = window
        self._started = started
        self._number = number
        self._began = began
        self.sent = sent
        """Whether a start was sent to the engine, so that a stop must follow."""

    @classmethod
    async def begin(
        cls, window: EngineWindow, started: Started, send: Callable[[], Awaitable[object]]
    ) -> NsysPart:
        """Start the engine. Nothing is sent if this process's own capture has an open range: the
        engine is in it, and the engine's stop would end it. Raises what `send` raises.
        """
        began, count = time.time(), started.count
        if started.under and started.launch is not None:
            warn_of_secrets(window.nsys, started.launch, started.environ)
        if count.of_this_process:
            return cls(window, started, count.begun, began, sent=False)
        await send()
        place = (window.window.step, window.stem)
        return cls(window, started, await in_thread(count.begin, place), began, sent=True)

    async def end(self, send: Callable[[], Awaitable[object]]) -> Stopped:
        """Stop the engine; its report arrives later. Raises what `send` raises."""
        count = self._started.count
        if self.sent:
            await send()
            count.end(self._number)
        holder = count.holder(self._number)
        if holder is not None and holder != (self._window.window.step, self._window.stem):
            return Stopped(joined=holder)
        return self._pending()

    def withdraw(self) -> None:
        """Note that the engine was never started."""
        if self.sent:
            self._started.count.withdraw(self._number)

    def abandon(self) -> None:
        """End it without waiting for its report."""
        if self.sent:
            self._started.count.end(self._number)

    def _pending(self) -> Stopped:
        window, launch = self._window, self._started.launch
        if launch is None:
            return Stopped(partial=ELSEWHERE)
        report = Report(
            Capture(window.window, window.folder, f"{window.stem}/{NAME}", window.metadata),
            launch,
            self._number,
            window.nsys,
            impossible=launch.without_report(self._number) if self._started.under else NOT_STARTED,
            count=self._started.count,
            began=self._began,
            pid=self._started.pid,
        )
        return Stopped(later=_Awaited(report))


class _Awaited:
    """A pending report. stepprof's own loop checks for it, each time on a thread."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._hurried = asyncio.Event()

    async def wait(self) -> Stopped:
        """Return the report after it was moved. Raises ExportError."""
        while (artifact := await in_thread(self._report.look)) is None:
            hurried = asyncio.ensure_future(self._hurried.wait())
            await asyncio.wait({hurried}, timeout=self._report.pause_seconds)
            hurried.cancel()
            self._hurried.clear()
        return Stopped((artifact,))

    def hurry(self, until: float) -> None:
        """Limit the wait to this time."""
        self._report.hurry(until)
        self._hurried.set()


class KeptCount(RangeCount):
    """The counted ranges of a server's session: other jobs may have recorded it before."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _count(self) -> None:
        try:
            text = read_plain(self._path, _DIGITS)
            self.begun = max(self.begun, int(text)) if text.isdigit() else self.begun
        except OSError:
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
        except OSError as error:
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
    with contextlib.suppress(OSError):  # another user's process, or it has ended
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
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
    except OSError:
        return None
    return dict(part.partition("=")[::2] for part in text.split("\0") if "=" in part)
