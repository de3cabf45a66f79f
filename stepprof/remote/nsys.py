"""An engine's part in a capture of nsys: the engine marks a range, and its report is found, moved
and listed like a rank's.

nsys names a report after the process that it started and the number of the range. The reports of an
engine object are those of this process's session, whichever child calls `cudaProfilerStart`. All
ranges of one session are one: an engine inside this process's own capture is in its report.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepprof.backends.nsys.process import Launch, launch_of, under_nsys
from stepprof.backends.nsys.reports import RangeCount, Report, ranges
from stepprof.backends.nsys.secrets import warn_of_secrets
from stepprof.host import real_time
from stepprof.remote.base import Stopped
from stepprof.remote.loop import in_thread
from stepprof.run.model import Capture

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow

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
        began, count = real_time.time(), started.count
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
