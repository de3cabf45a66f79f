"""Record with torch_npu.profiler. Armed means warmed up, recording means a session on the device.
The export renames the folder and checks it.

This module knows when torch_npu may be called. Its session belongs to the thread that started it:
torch_npu does not notice a stop on another thread and records for ever. It shares each thread's
profiler slot with torch's profiler, and everything else with every other torch_npu profile of the
process. Processes that share a device record one after another, by a lease.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Literal

from stepprof.backends.base import Backend, Busy, ExportCall
from stepprof.backends.npu.api import NpuApi
from stepprof.backends.npu.export import NpuExport
from stepprof.backends.npu.ranges import MstxRanges, Range, without_it
from stepprof.backends.npu.session import NpuSession
from stepprof.backends.other_npu_profiler import foreign_npu_profile
from stepprof.backends.process_slot import slot
from stepprof.config.options.npu import NpuOptions
from stepprof.errors import BackendError
from stepprof.host.device_lease import DeviceLease, lease_folder, physical_device
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.model import Annotation, Capture, Window

_numbers = itertools.count(1)


class NpuBackend(Backend):
    """Records with torch_npu.profiler.

    >>> NpuBackend(NpuOptions(level="level1")).thread_bound
    True
    """

    name = "npu"
    thread_bound = True

    def __init__(self, options: NpuOptions | None = None) -> None:
        self._options = options or NpuOptions()
        self._api: NpuApi | None = None
        self._phase: Literal["idle", "armed", "recording"] = "idle"
        self._session: NpuSession | None = None
        self._leases: dict[int, DeviceLease] = {}
        self._lease: DeviceLease | None = None
        self._near: Path | None = None
        self._window: Range | None = None
        self._ranges: MstxRanges | None = None  # ranges of the running capture, if it has any
        self._thread = threading.current_thread()
        self._pid = os.getpid()
        self._stranded = False

    def keep_near(self, folder: Path) -> None:
        """Note the run directory. A warm-up needs it before the first window, because CANN writes where it was prepared."""
        self._near = folder

    def probe(self) -> str | None:
        """Return why torch_npu cannot record here. The first call imports it, which takes seconds."""
        if self._api is None:
            try:
                self._api = NpuApi()
            except ModuleNotFoundError as error:
                return f"{error.name} is not installed ({error}); an Ascend machine needs the torch_npu of its torch"
            except ours(Exception) as error:  # an incomplete CANN is a plain Exception of torch_npu's
                return (
                    f"torch_npu cannot be imported ({_one_line(error)}); install the matching CANN and source its set_env.sh, "
                    "or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use torch without it"
                )
        try:
            lease_folder(self._options.lease_dir)
        except BackendError as error:
            return str(error)
        return self._api.problem()

    def arm(self) -> None:
        """Warm up if this process uses the device already and is its only user. Otherwise `start` does it, under the lease."""
        api = self._ready()
        self._clear_stranded()
        if self._phase != "idle":
            return
        self._refuse_foreign(api)
        if self._near is None or not api.in_use or not self._options.warm_up:
            return
        lease = self._lease_on(api.device())
        if lease.is_shared():
            return
        slot.take(self, "npu")
        try:
            lease.take("armed")
            self._lease = lease
            self._session = NpuSession(api, self._options, self._staging(self._near))
            self._phase = "armed"
        except Busy:  # another process has just acquired it: start waits for it
            self._release()
        except BaseException:
            self._release()
            raise

    def start(self, capture: Capture) -> None:
        """Begin to record, after a warm-up if there was none."""
        api = self._ready()
        self._clear_stranded()
        if self._phase == "recording":
            raise BackendError("the npu backend is recording already")
        if self._phase == "armed" and (self._session is None or self._pid != os.getpid()):
            self._release()
        try:
            self._refuse_foreign(api)
            if self._session is not None and self._session.device != api.device():
                self.abort()  # armed for another device than the one in use now
            session = self._session or self._begin(api, capture)
            if self._lease is not None:
                self._lease.describe(capture.stem)
            self._thread, self._pid = threading.current_thread(), os.getpid()
            self._phase = "recording"
            session.record(capture.metadata)
            self._open_window(api, capture)
        except BaseException:
            self.abort()
            raise

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """End the session. Return the export that checks and renames its folder (see `NpuExport`)."""
        session, api = self._session, self._api
        if session is None or api is None or self._phase != "recording" or self._pid != os.getpid():
            raise BackendError(f"there is no npu capture to stop: the backend is {self._phase}")
        if threading.current_thread() is not self._thread:
            raise BackendError(
                f"this npu capture belongs to thread {self._thread.name!r}, and {threading.current_thread().name!r} cannot stop it (torch_npu would record on)"
            )
        theirs = foreign_npu_profile(session.profile)
        self._close_window()
        try:
            problem = session.finish()
        finally:
            self._release()
        return NpuExport(
            session,
            capture,
            self._options,
            f"{theirs}: the two took each other's events" if theirs else problem,
        )

    def abort(self) -> None:
        """Leave any unfinished state. Idempotent."""
        session = self._session
        if session is None or self._pid != os.getpid():
            self._release()
            return
        if self._phase == "recording" and threading.current_thread() is not self._thread:
            if (
                self._thread.is_alive()
            ):  # only that thread could end it, so the slot and the device stay reserved
                self._stranded = True
                logger.warning(
                    "npu.abort_refused", owner=self._thread.name, thread=threading.current_thread().name
                )
                return
            session.abandon()
            self._release()
            return
        self._close_window()
        session.discard()
        self._release()

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """Return a range on the device's timeline, in stepprof's domain; None if ranges are off or torch_npu has none."""
        ranges = self._ranges
        return None if ranges is None else Range(ranges, name)

    def mark_lane(self, name: str) -> AbstractContextManager[object] | None:
        """Return such a range for a region that may be suspended.

        It is the same as that of `mark`: any thread may end an mstx range by its number, in any order.
        """
        return self.mark(name)

    def mark_window(self, window: Window) -> AbstractContextManager[object] | None:
        """Return the range of a window that joins the capture."""
        return self.mark(_name_of(window))

    def leave(self, marks: Sequence[AbstractContextManager[object]]) -> None:
        """End the open ranges. One that cannot be ended does not keep the others open."""
        for mark in marks:
            without_it(partial(mark.__exit__, None, None, None))

    def bytes_so_far(self) -> int | None:
        """Return the bytes that the session has written so far: torch_npu and CANN write while they record."""
        return None if self._session is None else self._session.bytes_so_far()

    def export_mode(self) -> str:
        """Return ``thread``: the export only checks files. A process with a device is never forked."""
        return "thread"

    # the session

    def _ready(self) -> NpuApi:
        reason = self.probe()
        if reason is not None or self._api is None:
            raise BackendError(reason or "torch_npu cannot record here")
        return self._api

    def _clear_stranded(self) -> None:
        """Retry to end a capture that another thread failed to end: possible from its own thread, or once that has ended."""
        if not self._stranded:
            return
        self.abort()
        if self._phase == "recording":
            raise Busy(
                f"an earlier npu capture of this process is still recording: only its thread {self._thread.name!r} could end it"
            )

    def _refuse_foreign(self, api: NpuApi) -> None:
        found = api.foreign(None if self._session is None else self._session.profile)
        if found is None and self._session is not None and api.recording_this_thread():
            found = "another torch profiler is running on this thread"
        if found is None:
            return
        session = self._session
        if session is not None:  # the other profiler took over our warm session: ending ours would end theirs
            session.release()
            self._release()
        raise Busy(f"{found}; it is left alone")

    def _begin(self, api: NpuApi, capture: Capture) -> NpuSession:
        """Begin a session without a warm-up, under the lease."""
        slot.take(self, "npu")
        lease = self._lease_on(api.device())
        lease.take(capture.stem, self._options.lease_wait_seconds)
        self._lease = lease
        self._session = NpuSession(api, self._options, self._staging(self._near or capture.folder))
        return self._session

    def _lease_on(self, device: int) -> DeviceLease:
        number = physical_device(device, os.environ)
        if number not in self._leases:
            self._leases[number] = DeviceLease(f"npu-{number}", lease_folder(self._options.lease_dir))
        return self._leases[number]

    @staticmethod
    def _staging(near: Path) -> Path:
        return near / f".npu-{os.getpid()}-{next(_numbers)}"

    def _release(self) -> None:
        self._session, self._phase, self._window, self._stranded = None, "idle", None, False
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        slot.release(self)

    def _open_window(self, api: NpuApi, capture: Capture) -> None:
        if self._options.ranges and api.ranges.there:
            self._ranges = api.ranges
            self._window = Range(api.ranges, _name_of(capture.window))
            without_it(self._window.__enter__)

    def _close_window(self) -> None:
        window, self._window, self._ranges = self._window, None, None
        if window is not None:
            without_it(partial(window.__exit__, None, None, None))


def _name_of(window: Window) -> str:
    again = f" ({window.occurrence})" if window.occurrence > 1 else ""
    return f"step {window.step} {window.name}{again}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
