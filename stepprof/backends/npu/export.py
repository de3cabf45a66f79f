"""Finish a capture after torch_npu's stop: give its folder the artifact's name, and check that it
holds a recording.

torch_npu reports nothing about CANN. Only the folder that CANN made shows that the device
recorded.

torch_npu gets one time wrong: at the end of a recording it writes CLOCK_MONOTONIC and later reads
it as CLOCK_MONOTONIC_RAW, which times its operations (2.1 to 2.14). The two differ by all slewing of
the clock since boot: 0.2 s after nine hours, seconds after a month. A recording without a device
would be displaced by that much; with one, CANN's own start time is used. So the number is corrected
before any analysis.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from stepprof.backends.base import Export, ExportError, Incomplete
from stepprof.backends.npu.session import NpuSession, tree_bytes
from stepprof.config.options.npu import NpuOptions
from stepprof.formats.npu_folder import KIND, SUFFIX, missing_parts
from stepprof.host.atomic_files import write_atomically
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.run.model import Artifact, Capture


class NpuExport(Export):
    """Gives one session's folder its place: ``<stem>.npu/<host>_<pid>_<time>_ascend_pt``, by a rename.

    Args:
        problem: what went wrong at the stop; the folder is kept nevertheless.
    """

    def __init__(
        self, session: NpuSession, capture: Capture, options: NpuOptions, problem: str | None
    ) -> None:
        self._staging = session.staging
        self._made = session.folder
        self._complaints = tuple(session.complaints)
        self._capture = capture
        self._options = options
        self._problem = problem

    def __call__(self) -> tuple[Artifact, ...]:
        """Name the artifact. Raises ExportError; Incomplete if only the analysis failed."""
        if self._made is None or not self._made.is_dir():
            raise ExportError(self._problem or f"torch_npu left no folder in {self._staging}")
        final = self._capture.folder / f"{self._capture.stem}{SUFFIX}"
        try:
            final.mkdir()
            folder = self._made.rename(final / self._made.name)
        except ours(OSError) as error:
            raise ExportError(
                f"the capture cannot be moved to {final}: {error.strerror or error}; it lies in {self._made}"
            ) from error
        finally:
            self.discard()
        correct_end(folder)
        lacking = missing_parts(folder, on_host=self._options.on_host, on_device=self._options.on_device)
        problem = self._problem or lacking
        if problem is not None:
            raise ExportError("; CANN said ".join([problem, *self._complaints]), self._artifact(folder))
        if self._complaints:
            logger.warning("npu.complained", folder=folder.name, reason="; ".join(self._complaints))
        if self._options.analyse:
            self._analyse(folder)
        return self._artifact(folder)

    def discard(self) -> None:
        """Remove the staging folder once it is empty."""
        if self._made is None or not self._made.exists():
            shutil.rmtree(self._staging, ignore_errors=True)

    def _artifact(self, folder: Path) -> tuple[Artifact, ...]:
        path = folder.relative_to(self._capture.folder).as_posix()
        return (Artifact(path=path, kind=KIND, bytes=tree_bytes(folder)),)

    def _analyse(self, folder: Path) -> None:
        from stepprof.formats.npu_analysis import analyse

        problem = analyse(folder, timeout_seconds=self._options.analyse_timeout_seconds)
        if problem is not None:
            raise Incomplete(f"{problem}; the capture itself is complete", self._artifact(folder))


_RAW = getattr(time, "CLOCK_MONOTONIC_RAW", None)


def correct_end(folder: Path) -> None:
    """Correct the end time in a folder that was just recorded on this machine. Leave a file of an
    unexpected form unchanged.
    """
    if _RAW is None:
        return
    raw, plain, wall = time.clock_gettime_ns(_RAW), time.monotonic_ns(), time.time_ns()
    for file in folder.glob("profiler_info*.json"):
        with ignored(OSError, ValueError, LookupError, TypeError):
            reported = json.loads(file.read_text(encoding="utf-8"))
            end = reported["end_info"]
            since = wall - end["collectionTimeEnd"]
            was = end["MonotonicTimeEnd"]
            if abs(was - (plain - since)) < abs(was - (raw - since)):
                end["MonotonicTimeEnd"] = was - (plain - raw)
                write_atomically(file, json.dumps(reported, indent=4, ensure_ascii=False).encode())
