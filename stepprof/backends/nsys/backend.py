"""Record with Nsight Systems: a window is a range of its capture, a region an NVTX range, and the
report arrives afterwards.

nsys records from outside: it must have started the process (`nsys_command`, `ray_runtime_env`), and
a window only marks its begin and end. So no window fails because nsys is missing: a window whose
report never arrives is `lost`, with the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec

from stepprof.backends.base import Backend, ExportCall
from stepprof.backends.nsys.cuda import CudaProfiler
from stepprof.backends.nsys.launch import count_windows, nsys_command, ray_runtime_env
from stepprof.backends.nsys.process import launch_of, under_nsys
from stepprof.backends.nsys.ranges import NvtxRanges, may_leave
from stepprof.backends.nsys.reports import Report, ranges
from stepprof.backends.nsys.secrets import warn_of_secrets
from stepprof.backends.process_slot import slot
from stepprof.config.options.nsys import NsysOptions
from stepprof.errors import BackendError
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.model import Annotation, Capture, Window

__all__ = ["NsysBackend", "count_windows", "nsys_command", "ray_runtime_env"]

NOT_STARTED = (
    "this process was not started under nsys; prefix its command with stepprof.backends.nsys.backend.nsys_command(config), "
    "or make its Ray actor with stepprof.backends.nsys.backend.ray_runtime_env(config)"
)
_logged: set[str] = set()


class NsysBackend(Backend):
    """Brackets windows for Nsight Systems.

    >>> NsysBackend(NsysOptions()).name
    'nsys'
    """

    name = "nsys"
    waits = True

    def __init__(self, options: NsysOptions | None = None) -> None:
        self._options = options or NsysOptions()
        self._cuda = CudaProfiler()
        self._ranges = NvtxRanges()
        self._recording = False
        self._brackets = False
        self._number = 0
        self._window: AbstractContextManager[object] | None = None
        self._pid = os.getpid()

    def probe(self) -> str | None:
        """Return why no window can be marked here. Whether nsys started this process, and whether
        torch loads CUDA later, is checked at each window.
        """
        settled = "torch" in sys.modules or find_spec("torch") is None
        return self._cuda.missing() if settled and under_nsys(os.environ) else None

    def arm(self) -> None:
        """Check whether a tool is attached by now. Log once which secrets its reports would contain, or what they would lack."""
        with slot.held_by(self, "nsys"):
            self._look()

    def start(self, capture: Capture) -> None:
        """Begin a range."""
        if self._recording:
            raise BackendError("the nsys backend is recording already")
        slot.take(self, "nsys")
        try:
            self._pid = os.getpid()
            self._look()
            self._brackets = under_nsys(os.environ)
            if self._brackets:
                self._cuda.start()
                self._number = ranges.begin((capture.window.step, capture.stem), own=True)
            self._recording = True
            window = self._ranges.window(capture.window)
            if window is not None:
                window.__enter__()
                self._window = window
        except BaseException:
            self.abort()
            raise

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """End the range. Return the export that waits for its report."""
        if not self._recording or self._pid != os.getpid():
            raise BackendError("there is no nsys range to end")
        failure = self._end()
        launch = launch_of(self._options, os.environ)
        if not self._brackets:
            failure = NOT_STARTED
        elif failure is None:
            failure = launch.without_report(self._number)
        return Report(capture, launch, self._number, self._options, impossible=failure)

    def abort(self) -> None:
        """End the range if one has begun. Idempotent."""
        if self._recording and self._pid == os.getpid():
            failure = self._end()
            if failure is not None:
                logger.warning("nsys.range_left_open", reason=failure)
        elif self._brackets and self._pid == os.getpid() and self._number > ranges.ended:
            self._stop_range()
        self._recording, self._window = False, None
        slot.release(self)

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """Return an NVTX range on this thread's stack."""
        return self._ranges.push(name) if self._recording else None

    def mark_lane(self, name: str) -> AbstractContextManager[object] | None:
        """Return an NVTX range of the process, for a region that may be suspended."""
        return self._ranges.span(name) if self._recording else None

    def mark_window(self, window: Window) -> AbstractContextManager[object] | None:
        """Return the range of a window that joins the capture."""
        return self._ranges.window(window) if self._recording else None

    def may_leave(self, mark: object) -> bool:
        """Return whether the calling thread may end it: a range on a thread's stack belongs to that thread."""
        return may_leave(mark)

    def export_mode(self) -> str:
        """Return ``thread``: a thread waits for the report."""
        return "thread"

    def _end(self) -> str | None:
        """End the window's range and nsys's. Return why the latter did not end, if it did not."""
        window, self._window, self._recording = self._window, None, False
        try:
            if window is not None:
                window.__exit__(None, None, None)
        except ours(Exception) as error:  # nsys's own range must end nevertheless
            logger.warning("nsys.range_not_ended", reason=repr(error))
        try:
            return self._stop_range() if self._brackets else None
        finally:
            slot.release(self)

    def _stop_range(self) -> str | None:
        try:
            self._cuda.stop()
        except ours(Exception) as error:  # whatever the driver reports, the range has not ended
            return f"the range never ended: {error}"
        finally:
            ranges.end(self._number)
        return None

    def _look(self) -> None:
        attached = under_nsys(os.environ)
        unmarked = None if self._ranges.look() else self._ranges.missing()
        if not attached:
            if _is_new(NOT_STARTED):
                logger.warning("nsys.not_launched", reason=NOT_STARTED)
            return
        if unmarked is not None and _is_new(unmarked):
            logger.warning("nsys.regions_unmarked", reason=unmarked)
        warn_of_secrets(self._options, launch_of(self._options, os.environ), os.environ)


def _is_new(reason: str) -> bool:
    """Return whether this process has not logged the reason yet."""
    is_new = reason not in _logged
    _logged.add(reason)
    return is_new
