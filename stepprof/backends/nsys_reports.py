"""Where nsys leaves the report of a window, and how it comes into the step's folder.

nsys writes one report per range, ``<name>.<number>.nsys-rep``, some seconds after the range has ended (or, if it was told to defer, when the last one has). Its name holds the process id, so
that ranks beside each other never take each other's. It is waited for on a thread of its own, until it has a size that does not change any more, and then moved.

What `nsys_command` and `ray_runtime_env` settled comes in $STEPPROF_NSYS: where the reports go, for how many ranges, and when they are written.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepprof.backends.base import ExportError
from stepprof.files import publish
from stepprof.nsysoptions import NsysOptions
from stepprof.window import Artifact, Capture

__all__ = ["VARIABLE", "Launch", "Report", "ReportLost", "launch_of", "under_nsys"]

VARIABLE = "STEPPROF_NSYS"
KIND = "nsys"
SUFFIX = ".nsys-rep"
UNFINISHED = (".qdstrm",)

_LOOK_SECONDS = (0.05, 1.0)
"""How long to wait between two looks, at first and at most."""
_SETTLED_SECONDS = 0.3
"""For how long a report's size must not have changed."""
_TOOLS = re.compile(r"nsys|nsight|ToolsInjection", re.IGNORECASE)


class ReportLost(ExportError):
    """There is no report: the window is `lost`."""

    outcome = "lost"


@dataclass(frozen=True, slots=True)
class Launch:
    """How this process was started, as far as its reports go.

    ``ranges``: after how many nsys records no more; None: never, or not known. ``deferred``: it writes no report before the last of them.
    """

    folder: Path | None
    names: re.Pattern[str] | None
    ranges: int | None = None
    deferred: bool = False
    leaves_environment_out: bool = False

    def find(self, number: int) -> Path | None:
        """The report of a range, or what nsys has left of it unfinished."""
        if self.folder is None or self.names is None:
            return None
        best = None
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return None
        for name in names:
            matched = self.names.fullmatch(name)
            # without a number: the only report of a session that was told to take one range
            if matched and (matched["number"] == str(number) or (not matched["number"] and number == 1)):
                best = (
                    name
                    if best is None or (name.endswith(SUFFIX), name) > (best.endswith(SUFFIX), best)
                    else best
                )
        return None if best is None else self.folder / best


def under_nsys(environ: Mapping[str, str]) -> bool:
    """Whether nsys started this process, or one that it descends from."""
    return bool(
        environ.get("NSYS_PROFILING_SESSION_ID")
        or environ.get(VARIABLE)
        or any(
            _TOOLS.search(environ.get(name, ""))
            for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
        )
    )


def launch_of(options: NsysOptions, environ: Mapping[str, str]) -> Launch:
    """What is known of how nsys was started."""
    settled = dict(part.partition("=")[::2] for part in environ.get(VARIABLE, "").split(";") if "=" in part)
    output = settled.get("output", "")
    folder = Path(options.report_dir) if options.report_dir is not None else None
    if folder is None and Path(output).is_absolute():
        folder = Path(output).parent
    if folder is None:
        folder = _ray_folder()
    ranges = settled.get("ranges", "")
    mode = settled.get("mode", "")
    return Launch(
        folder,
        _names(Path(output).name),
        int(ranges) if ranges.isdigit() else None,
        mode == "defer",
        settled.get("environment") == "left-out",
    )


def _names(template: str) -> re.Pattern[str]:
    """Reports of this process: by the name that was settled, else by the process id in it, which then has to be our own: a small number of a process above is in many a name."""
    if "{pid}" in template:
        pids = "|".join(str(pid) for pid in _own_and_above())
        host = re.escape(socket.gethostname())
        text = re.escape(template).replace(re.escape("{pid}"), f"(?:{pids})")
        text = text.replace(re.escape("{host}"), host)
    else:
        text = rf"'?(?:.*\D)?{os.getpid()}(?:[^\d.].*?)?'?"
    return re.compile(rf"{text}(?:\.(?P<number>\d+))?(?:{'|'.join(map(re.escape, (SUFFIX, *UNFINISHED)))})")


def _own_and_above() -> list[int]:
    """This process, and those that it descends from: nsys names its reports after the one that it started, be that a shell or a launcher."""
    found: list[int] = []
    pid = os.getpid()
    while pid > 1 and len(found) < 20:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found


def _ray_folder() -> Path | None:
    """Where Ray has nsys write: ``<session>/logs/nsight``."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        node = ray._private.worker.global_worker.node
        return Path(node.get_logs_dir_path()) / "nsight"
    except Exception:  # noqa: BLE001 - Ray's internals, of whatever version
        return None


class _Ranges:
    """The ranges that this process has begun and ended: nsys numbers its reports by them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self.begun = 0
        self.ended = 0
        self.ended_at = 0.0

    def begin(self) -> int:
        with self._lock:
            self.begun += 1
            return self.begun

    def end(self) -> None:
        with self._lock:
            self.ended += 1
            self.ended_at = time.monotonic()


ranges = _Ranges()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ranges.reset)


class Report:
    """The export of one window: waits for its report, and moves it. Its thread holds nothing up."""

    def __init__(
        self, capture: Capture, launch: Launch, number: int, options: NsysOptions, *, hopeless: str | None
    ) -> None:
        self._capture = capture
        self._launch = launch
        self._number = number
        self._timeout = options.report_timeout_seconds
        self._hopeless = hopeless
        self._began = time.time()
        self._until: float | None = None
        self._hurried = threading.Event()

    def __call__(self) -> tuple[Artifact, ...]:
        """Wait, and move. Raises ReportLost, or ExportError where the report cannot be moved."""
        if self._hopeless is not None:
            raise ReportLost(self._hopeless)
        path = self._wait()
        return (self._move(path),)

    def hurry(self, until: float) -> None:
        """The process is about to end: wait no longer than until then (by `time.monotonic`)."""
        self._until = until
        self._hurried.set()

    def _wait(self) -> Path:
        pause, most = _LOOK_SECONDS
        seen: tuple[Path, int, int] | None = None
        since = time.monotonic()
        while True:
            now = time.monotonic()
            path = self._launch.find(self._number)
            size = self._size(path)
            if path is not None and size is not None:
                look = (path, *size)
                if look != seen:
                    seen, since = look, now
                elif now - since >= _SETTLED_SECONDS:
                    return path
                pause = _LOOK_SECONDS[0]
            if now >= self._deadline():
                raise ReportLost(self._reason(path))
            self._hurried.wait(min(pause, max(self._deadline() - now, 0.01)))
            self._hurried.clear()
            pause = min(pause * 1.5, most)

    def _size(self, path: Path | None) -> tuple[int, int] | None:
        """Size and time of a report that is there; an empty one, or one from before this window, is none yet."""
        if path is None or path.suffix != SUFFIX:
            return None
        try:
            status = path.stat()
        except OSError:
            return None
        fresh = status.st_mtime >= self._began - 2.0  # a file system may keep whole seconds
        return (status.st_size, status.st_mtime_ns) if status.st_size and fresh else None

    @property
    def _due(self) -> bool:
        """Whether nsys has begun to write it, as far as it goes by what it was told."""
        wanted = self._launch.ranges
        return not self._launch.deferred or wanted is None or ranges.ended >= wanted

    def _deadline(self) -> float:
        if self._until is not None:
            return self._until if self._due else 0.0
        return ranges.ended_at + self._timeout if self._due else float("inf")

    def _reason(self, path: Path | None) -> str:
        launch = self._launch
        where = f"{launch.folder} (range {self._number} of process {os.getpid()})"
        if not self._due:
            return (
                f"nsys was told to write its reports after {launch.ranges} windows, and there were {ranges.ended}: "
                f"it writes them when the process has ended, to {where}; give it the right number of windows"
            )
        ended = "when the process ended" if self._until is not None else f"after {self._timeout:g} s"
        if path is not None and path.suffix != SUFFIX:
            return f"nsys is still exporting {ended}: {path} is not a report yet; nsys can be run on it to finish it"
        if path is not None:
            return f"{path} was empty, older than the window or still growing {ended}: nsys is still exporting, or failed to"
        return (
            f"nsys wrote no report to {where} {ended}: it is still exporting, the disk is full, another process of the same "
            "nsys session has taken it, or the range never ended for nsys (it was not told --capture-range=cudaProfilerApi)"
        )

    # moving

    def _move(self, path: Path) -> Artifact:
        final = self._capture.folder / f"{self._capture.stem}{SUFFIX}"
        hidden = final.with_name(f".{final.name}.{os.getpid()}-{self._number}")
        try:
            try:
                path.rename(hidden)  # whoever comes second finds nothing
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copy(path, hidden)
            size = hidden.stat().st_size
            final = publish(hidden, final)
        except FileNotFoundError as error:
            if final.parent.is_dir():
                raise ReportLost(f"another process of the same nsys session has taken {path}") from error
            raise ExportError(f"the report stays at {path}: {final.parent} is gone") from error
        except OSError as error:
            raise ExportError(
                f"the report stays at {path}: it cannot be moved to {final.parent}: {error.strerror or error}"
            ) from error
        return Artifact(
            path=final.relative_to(self._capture.folder).as_posix(), kind=KIND, bytes=size, events=None
        )

    @staticmethod
    def _copy(path: Path, hidden: Path) -> None:
        """Across file systems: taken by a rename beside it, copied, and only then removed."""
        taken = path.with_name(f".{path.name}.{os.getpid()}.taken")
        path.rename(taken)
        try:
            shutil.copyfile(taken, hidden)
        except BaseException:
            hidden.unlink(missing_ok=True)
            taken.rename(path)
            raise
        taken.unlink()
