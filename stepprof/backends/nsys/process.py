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
from stepprof.interrupts import ignored, ours
from stepprof.log import logger

VARIABLE = "STEPPROF_NSYS"
SUFFIX = ".nsys-rep"
UNFINISHED = (".qdstrm",)

_ENDING = rf"(?:\.(?P<number>\d+))?(?:{'|'.join(map(re.escape, (SUFFIX, *UNFINISHED)))})"
_TOOLS = re.compile(r"nsys|nsight|ToolsInjection", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process was started, as far as its reports are concerned. ``ranges``: the number of
    ranges that nsys records; None: unlimited or unknown. ``deferred``: it writes no report before
    the last of them.
    """

    folder: Path | None
    names: re.Pattern[str] | None
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
                "the folder of nsys's reports is not known: start nsys with stepprof.backends.nsys.backend.nsys_command(config), "
                "or name the folder as report_dir in [nsys]"
            )
        return None

    def find(self, number: int) -> Path | None:
        """Return the report of a range, or nsys's unfinished file of it."""
        if self.folder is None or self.names is None:
            return None
        best = None
        try:
            names = [path.name for path in self.folder.iterdir()]
        except ours(OSError):
            return None
        for name in names:
            matched = self.names.fullmatch(name)
            # without a number: the only report of a session that records one range
            if matched and (matched["number"] == str(number) or (not matched["number"] and number == 1)):
                best = (
                    name
                    if best is None or (name.endswith(SUFFIX), name) > (best.endswith(SUFFIX), best)
                    else best
                )
        return None if best is None else self.folder / best


def under_nsys(environ: Mapping[str, str]) -> bool:
    """Return whether nsys started the process with this environment, or one of its ancestors."""
    return bool(
        environ.get("NSYS_PROFILING_SESSION_ID")
        or environ.get(VARIABLE)
        or any(
            _TOOLS.search(environ.get(name, ""))
            for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "LD_PRELOAD")
        )
    )


def launch_of(options: NsysOptions, environ: Mapping[str, str], pid: int | None = None) -> Launch:
    """Return how nsys started a process.

    Args:
        options: where reports are, if the command was the user's own.
        environ: of that process.
        pid: which process of this host; None: this one.
    """
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
        _names(Path(output).name, os.getpid() if pid is None else pid),
        int(ranges) if ranges.isdigit() else None,
        mode == "defer",
        settled.get("environment") == "left-out",
    )


def _names(template: str, pid: int) -> re.Pattern[str]:
    """Return the reports of a process: by the configured name, else by its own process id in the
    name. The small id of an ancestor appears in many names.
    """
    if template:
        pids = "|".join(str(above) for above in _itself_and_above(pid))
        host = re.escape(socket.gethostname())
        text = re.escape(template).replace(re.escape("{pid}"), f"(?:{pids})")
        text = text.replace(re.escape("{host}"), host)
    else:
        text = rf"'?(?:.*\D)?{pid}(?:[^\d.].*?)?'?"
    return re.compile(text + _ENDING)


def _itself_and_above(pid: int) -> list[int]:
    """Return a process and its ancestors up to nsys: nsys names reports after the process that it
    started, such as a shell or a launcher. Processes above nsys belong to another session.
    """
    found: list[int] = []
    while pid > 1 and len(found) < 20:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            above = int(rest.split()[1])
        except ours(OSError, ValueError, IndexError):
            return found or [pid]
        if found and _TOOLS.search(name):
            break
        found.append(pid)
        pid = above
    return found


def _ray_folder() -> Path | None:
    """Return the folder in which Ray has nsys write: ``<session>/logs/nsight``."""
    ray = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return None
        node = ray._private.worker.global_worker.node
        return Path(node.get_logs_dir_path()) / "nsight"
    except ours(Exception) as error:  # Ray's internals, of any version
        logger.warning("nsys.ray_folder_missing", reason=f"{type(error).__name__}: {error}")
        return None


_NAMES = re.compile(r"nsys|nsight|qdstrm|quadd", re.IGNORECASE)
"""The names of nsys's own processes: `nsys`, `nsys-launcher`, `QdstrmImporter`."""


def is_being_written(path: Path) -> bool:
    """Return whether a process of nsys has the file open: it may pause for longer than a size can be watched.

    That works only for processes of this host and user; elsewhere the size decides.
    """
    wanted = os.path.realpath(path)
    return any(wanted in _open_files(process) for process in _processes())


def _processes() -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with ignored(OSError):  # it has ended meanwhile
            if _NAMES.search((process / "comm").read_text()):
                found.append(process)
    return found


def _open_files(process: Path) -> list[str]:
    found = []
    with ignored(OSError):  # another user's process, or it has ended
        for link in (process / "fd").iterdir():
            with ignored(OSError):
                found.append(str(link.readlink()))
    return found
