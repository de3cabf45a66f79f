"""Find out how nsys started a process: where it writes the reports, which are this process's, and
how many to expect.

`nsys_command` and `ray_runtime_env` pass the folder, the number of ranges and the time of writing
in $STEPPROF_NSYS. This module knows how nsys names its reports: after the process that nsys
started, which may be an ancestor of this one.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stepprof.config.options.nsys import NsysOptions
from stepprof.host.process_identity import parent_of
from stepprof.interrupts import ignored, ours
from stepprof.log import logger

VARIABLE = "STEPPROF_NSYS"
SUFFIX = ".nsys-rep"

_ENDING = r"(?:\.(?P<number>\d+))?\.(?:nsys-rep|qdstrm)"
"""A number, unless nsys records a single range; and the suffix of a report or of nsys's unfinished file."""
_TOOLS = re.compile(r"nsys|nsight|ToolsInjection|qdstrm|quadd", re.IGNORECASE)
"""Names of nsys's libraries and processes: `nsys`, `nsys-launcher`, `QdstrmImporter`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process was started, as far as its reports are concerned. ``ranges``: the number of
    ranges that nsys records; None: unlimited or unknown. ``deferred``: it writes no report before
    the last of them.
    """

    folder: Path | None
    names: re.Pattern[str]
    ranges: int | None = None
    deferred: bool = False
    leaves_environment_out: bool = False

    @classmethod
    def alone_in(cls, folder: Path) -> Launch:
        """Return the launch of a process of which only the folder of the reports is known, in which
        no other process writes.
        """
        return cls(folder, re.compile(rf".*?{_ENDING}"))

    def without_report(self, number: int) -> str | None:
        """Return why no report of this range can be found, or None."""
        if self.ranges is not None and number > self.ranges:
            return (
                f"this is window {number} of the process, and nsys was started for {self.ranges}: set windows in "
                '[nsys] to the right number, or to "any"'
            )
        if self.folder is None:
            return (
                "the folder of nsys's reports is not known: start nsys with stepprof.backends.nsys.nsys_command(config), "
                "or name the folder as report_dir in [nsys]"
            )
        return None

    def find(self, number: int) -> Path | None:
        """Return the report of a range, or nsys's unfinished file of it."""
        found = []
        with ignored(OSError):
            for path in () if self.folder is None else self.folder.iterdir():
                matched = self.names.fullmatch(path.name)
                if matched and (matched["number"] or "1") == str(number):
                    found.append(path)
        return max(found, key=lambda path: (path.suffix == SUFFIX, path.name), default=None)


def under_nsys(environ: Mapping[str, str]) -> bool:
    """Return whether nsys started the process with this environment, or one of its ancestors."""
    injected = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
    return bool(
        environ.get("NSYS_PROFILING_SESSION_ID")
        or environ.get(VARIABLE)
        or any(_TOOLS.search(environ.get(name, "")) for name in injected)
    )


def launch_of(options: NsysOptions, environ: Mapping[str, str], pid: int | None = None) -> Launch:
    """Return how nsys started a process.

    Args:
        options: where reports are, if the command was the user's own.
        environ: of that process.
        pid: which process of this host; None: this one.
    """
    settled = dict(part.partition("=")[::2] for part in environ.get(VARIABLE, "").split(";"))
    output = Path(settled.get("output", ""))
    if options.report_dir is not None:
        folder: Path | None = Path(options.report_dir)
    else:
        folder = output.parent if output.is_absolute() else _ray_folder()
    ranges = settled.get("ranges", "")
    return Launch(
        folder,
        _names(output.name, pid or os.getpid()),
        int(ranges) if ranges.isdigit() else None,
        settled.get("mode") == "defer",
        settled.get("environment") == "left-out",
    )


def _names(template: str, pid: int) -> re.Pattern[str]:
    """Return the reports of a process: by the configured name, else by its own process id in the
    name. The small id of an ancestor appears in many names.
    """
    if not template:
        return re.compile(rf"(?:.*\D)?{pid}(?:[^\d.].*?)?{_ENDING}")
    pids = "|".join(map(str, _itself_and_above(pid)))
    name = template.replace("{host}", socket.gethostname())
    return re.compile(f"(?:{pids})".join(map(re.escape, name.split("{pid}"))) + _ENDING)


def _itself_and_above(pid: int) -> list[int]:
    """Return a process and its ancestors up to nsys: nsys names reports after the process that it
    started, such as a shell or a launcher. Processes above nsys belong to another session.
    """
    found = [pid]
    while (above := parent_of(found[-1])) and not _is_nsys(Path(f"/proc/{above}")):
        found.append(above)
    return found


def _is_nsys(process: Path) -> bool:
    try:
        return bool(_TOOLS.search((process / "comm").read_text()))
    except ours(OSError):  # it has ended meanwhile
        return False


def _ray_folder() -> Path | None:
    """Return the folder in which Ray has nsys write: ``<session>/logs/nsight``."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        return Path(ray._private.worker.global_worker.node.get_logs_dir_path()) / "nsight"
    except ours(Exception) as error:  # Ray's internals, of any version
        logger.warning("nsys.ray_folder_missing", reason=f"{type(error).__name__}: {error}")
        return None


def is_being_written(path: Path) -> bool:
    """Return whether a process of nsys has the file open: it may pause for longer than a size can be watched.

    That works only for processes of this host and user; elsewhere the size decides.
    """
    wanted = os.path.realpath(path)
    for process in filter(_is_nsys, Path("/proc").glob("[0-9]*")):
        with ignored(OSError):  # another user's process, or it has ended
            if any(os.path.realpath(link) == wanted for link in (process / "fd").iterdir()):
                return True
    return False
