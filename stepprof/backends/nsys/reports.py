"""Wait for the report of a window, and move it into the step's folder.

nsys writes one report per range, ``<name>.<number>.nsys-rep``, some seconds after the range has
ended, or, if deferred, after the last range. Its name contains the process id, so that ranks on one
host never take each other's. A background thread waits until its size is stable, then moves it.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path

from stepprof.backends.base import Export, ExportError
from stepprof.backends.nsys.process import SUFFIX, Launch, is_being_written
from stepprof.config.options.nsys import NsysOptions
from stepprof.host import real_time
from stepprof.host.atomic_files import publish, temporary
from stepprof.interrupts import ignored, ours
from stepprof.run.model import Artifact, Capture

KIND = "nsys"

_LOOK_SECONDS = 0.2
"""Seconds between two checks."""
_SETTLED_SECONDS = 0.3
"""Seconds for which a report's size must not have changed."""
_HELD_SECONDS = 30.0
"""Seconds for which a report that does not grow is left to an nsys that has it open."""

Place = tuple[int, str]
"""The owner of a range: the step, and the path below the step's folder, without a suffix."""


class ReportLost(ExportError):
    """There is no report: the window is `lost`."""

    outcome = "lost"


class RangeCount:
    """Counts the ranges of one session of nsys, which numbers its reports by them.

    A session covers a process and all its descendants. A range that begins inside another one has
    no effect, and the first end ends all of them.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again from zero."""
        self._lock = threading.Lock()
        self._holders: dict[int, Place] = {}
        self.begun = 0
        self.ended = 0
        self.ended_at = 0.0
        self.open = False
        self.of_this_process = False
        """Whether the open range is that of this process's own capture."""

    def begin(self, place: Place, *, own: bool = False) -> int:
        """Begin a range, or join the open one. Return its number.

        Args:
            place: where the report of the range is put, unless another capture of the range comes first.
            own: this process captures itself. Then `place` comes first.
        """
        with self._lock:
            if not self.open:
                self._count()
                self.open = True
            if own:
                self._holders[self.begun], self.of_this_process = place, True
            self._holders.setdefault(self.begun, place)
            return self.begun

    def end(self, number: int | None = None) -> None:
        """End the open range; with a number, only if it has that number."""
        with self._lock:
            if self.open and number in (None, self.begun):
                self.open = self.of_this_process = False
                self.ended = self.begun
                self.ended_at = real_time.monotonic()

    def withdraw(self, number: int) -> None:
        """Withdraw a range that was never begun."""
        with self._lock:
            if self.open and number == self.begun and not self.of_this_process:
                self.open = False
                self._holders.pop(number, None)
                self.begun -= 1

    def holder(self, number: int) -> Place | None:
        """Return the owner of a range's report."""
        with self._lock:
            return self._holders.get(number)

    def _count(self) -> None:
        self.begun += 1


ranges = RangeCount()
"""The ranges of the session that this process runs in."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ranges.reset)


class Report(Export):
    """The pending export of a window: its report.

    Args:
        capture: where it belongs.
        launch: where nsys leaves it.
        number: of its range.
        options: include the timeout.
        impossible: why there will be none.
        count: the ranges of its session.
        began: when its window began, by `time.time`: older files are not its report; None: now.
        pid: of the process that was started under nsys, for messages; None: this one.
    """

    def __init__(
        self,
        capture: Capture,
        launch: Launch,
        number: int,
        options: NsysOptions,
        *,
        impossible: str | None,
        count: RangeCount = ranges,
        began: float | None = None,
        pid: int | None = None,
    ) -> None:
        self._capture = capture
        self._launch = launch
        self._number = number
        self._timeout = options.report_timeout_seconds
        self._impossible = impossible
        self._count = count
        self._began = real_time.time() if began is None else began
        self._pid = os.getpid() if pid is None else pid
        self._until = float("inf")
        self._hurried = threading.Event()
        self._seen: tuple[Path, int, int] | None = None
        self._since = 0.0

    def __call__(self) -> tuple[Artifact, ...]:
        """Wait for the report and move it. Raises ReportLost, or ExportError if it cannot be moved."""
        while (artifact := self.look()) is None:
            self._hurried.wait(self.pause_seconds)
            self._hurried.clear()
        return (artifact,)

    def hurry(self, until: float) -> None:
        """Limit the wait to this time (by `time.monotonic`): the process is about to end."""
        self._until = until
        self._hurried.set()

    @property
    def pause_seconds(self) -> float:
        """Return how long to wait before the next check."""
        return min(_LOOK_SECONDS, max(self._deadline() - real_time.monotonic(), 0.01))

    def look(self) -> Artifact | None:
        """Move the report and return it; None while it may still arrive. Raises ReportLost, or
        ExportError if it cannot be moved.
        """
        if self._impossible is not None:
            raise ReportLost(self._impossible)
        now = real_time.monotonic()
        path = self._launch.find(self._number)
        seen = self._state(path)
        if seen != self._seen:
            self._seen, self._since = seen, now
        elif seen is not None and path is not None and self._is_finished(path, now - self._since):
            return self._move(path)
        if now >= self._deadline():
            raise ReportLost(self._reason(path))
        return None

    def _state(self, path: Path | None) -> tuple[Path, int, int] | None:
        """Return the report's size and time; None if there is none, or it is empty or older than this window."""
        if path is None or path.suffix != SUFFIX:
            return None
        try:
            status = path.lstat()
        except ours(OSError):
            return None
        regular = stat.S_ISREG(status.st_mode)  # in a folder that others can write, a link may lead anywhere
        fresh = status.st_mtime >= self._began - 2.0  # a file system may store whole seconds only
        return (path, status.st_size, status.st_mtime_ns) if regular and fresh and status.st_size else None

    @staticmethod
    def _is_finished(path: Path, idle: float) -> bool:
        if idle < _SETTLED_SECONDS:
            return False
        return idle >= _HELD_SECONDS or not is_being_written(path)

    @property
    def _due(self) -> bool:
        """Return whether nsys should have begun to write it, by its configuration."""
        wanted = self._launch.ranges
        return not self._launch.deferred or wanted is None or self._count.ended >= wanted

    def _deadline(self) -> float:
        if self._due:
            return min(self._count.ended_at + self._timeout, self._until)
        return self._until if self._until == float("inf") else 0.0

    def _reason(self, path: Path | None) -> str:
        launch = self._launch
        where = f"{launch.folder} (range {self._number} of process {self._pid})"
        if not self._due:
            return (
                f"nsys was started to write its reports after {launch.ranges} windows, and there were {self._count.ended}: "
                f"it writes them to {where} when the process has ended; set windows in [nsys] to the right number"
            )
        cut_short = self._until < self._count.ended_at + self._timeout
        ended = "when the process ended" if cut_short else f"after {self._timeout:g} s"
        if path is None:
            return (
                f"nsys wrote no report to {where} {ended}: it is still exporting, the disk is full, another process of the same "
                "nsys session has taken it, or the range never ended for nsys (start it with --capture-range=cudaProfilerApi)"
            )
        if path.suffix == SUFFIX:
            return f"{path} was empty, older than the window or still growing {ended}: nsys is still exporting, or failed to"
        return (
            f"nsys is still exporting {ended}, or has no importer: {path} is not a report yet; a complete Nsight Systems "
            "converts it (QdstrmImporter)"
        )

    def _move(self, path: Path) -> Artifact:
        """Move the report to its step: rename it to claim it, move it across file systems if necessary,
        and give it its name. If that fails or is interrupted, the report stays in its place.
        """
        folder = self._capture.folder
        final = folder / f"{self._capture.stem}{SUFFIX}"
        taken = path.with_name(f".{path.name}.{os.getpid()}-{id(self):x}.taken")
        hidden = temporary(final)
        try:
            try:
                path.rename(taken)
            except FileNotFoundError as error:
                raise ReportLost(f"another process of the same nsys session has taken {path}") from error
            shutil.move(taken, hidden)
            size = hidden.stat().st_size
            final = publish(hidden, final)
        except BaseException as error:
            with ignored(OSError):
                if not taken.exists():
                    shutil.move(hidden, taken)
                taken.rename(path)
                hidden.unlink(missing_ok=True)
            if isinstance(error, ours(OSError)):
                raise self._stays(path, final, error) from error
            raise
        return Artifact(path=final.relative_to(folder).as_posix(), kind=KIND, bytes=size, events=None)

    @staticmethod
    def _stays(path: Path, final: Path, error: OSError) -> ExportError:
        reason = error.strerror or error
        return ExportError(f"the report stays at {path}: it cannot be moved to {final.parent}: {reason}")
