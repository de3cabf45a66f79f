"""torch_npu.profiler as a backend: armed means warmed up, recording means a session on the device, stop hands over in place; what is left is to look at its folder and give it its name.

What only this module knows is when torch_npu may be touched. Its session belongs to the thread that started it: a stop on another one is not noticed by torch_npu, and it records for ever. It shares
one slot of each thread with torch's profiler, and all else with every other profile of its own in the process. And processes that share a device record one after the other, by a lease.
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
from stepprof.backends.npu.ranges import Range, Ranges, without_it
from stepprof.backends.npu.session import NpuSession
from stepprof.backends.other_npu_profiler import foreign_npu_profile
from stepprof.backends.process_slot import slot
from stepprof.config.options.npu import NpuOptions
from stepprof.errors import BackendError
from stepprof.host.device_lease import DeviceLease, lease_folder, physical_device
from stepprof.log import logger
from stepprof.run.model import Annotation, Capture, Window

__all__ = ["NpuBackend"]

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
        self._ranges: Ranges | None = None  # of the capture that runs, where it has ranges
        self._thread = threading.current_thread()
        self._pid = os.getpid()
        self._stranded = False

    def keep_near(self, folder: Path) -> None:
        """Where captures will belong: a warm-up has to know before there is a window, since CANN writes where it was prepared."""
        self._near = folder

    def probe(self) -> str | None:
        """Say why torch_npu cannot record here. The first call imports it: seconds."""
        if self._api is None:
            try:
                self._api = NpuApi()
            except ModuleNotFoundError as error:
                return f"{error.name} is not installed ({error}); an Ascend machine needs the torch_npu of its torch"
            except Exception as error:  # noqa: BLE001 - an incomplete CANN is a plain Exception of torch_npu's
                return (
                    f"torch_npu cannot be imported ({_one_line(error)}); install the CANN that it belongs to and source its set_env.sh, "
                    "or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use torch without it"
                )
        try:
            lease_folder(self._options.lease_dir)
        except BackendError as error:
            return str(error)
        return self._api.problem()

    def arm(self) -> None:
        """Warm up, where this process has the device to itself, and uses it already; else that is done at start, in the device's turn."""
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
        except Busy:  # it has just been taken: start will wait for it
            self._let_go()
        except BaseException:
            self._let_go()
            raise

    def start(self, capture: Capture) -> None:
        """Begin to record; without a warm-up before it, that comes first."""
        api = self._ready()
        self._clear_stranded()
        if self._phase == "recording":
            raise BackendError("the npu backend is recording already")
        if self._phase == "armed" and (self._session is None or self._pid != os.getpid()):
            self._let_go()
        try:
            self._refuse_foreign(api)
            if self._session is not None and self._session.device != api.device():
                self.abort()  # armed for another device than the one that is in use now
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
        """End the session; the callable looks at what it left, and names it (see `NpuExport`)."""
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
            self._let_go()
        return NpuExport(
            session,
            capture,
            self._options,
            f"{theirs}: the two took each other's events" if theirs else problem,
        )

    def abort(self) -> None:
        """Leave any half state. Idempotent."""
        session = self._session
        if session is None or self._pid != os.getpid():
            self._let_go()
            return
        if self._phase == "recording" and threading.current_thread() is not self._thread:
            if (
                self._thread.is_alive()
            ):  # only that thread could end it: so the slot and the device stay taken
                self._stranded = True
                logger.warning(
                    "npu.abort_refused", owner=self._thread.name, thread=threading.current_thread().name
                )
                return
            session.abandon()
            self._let_go()
            return
        self._close_window()
        session.discard()
        self._let_go()

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """A range on the device's timeline, in a domain of stepprof's own; None where they are off, or torch_npu has none."""
        ranges = self._ranges
        return None if ranges is None else Range(ranges, name)

    def mark_lane(self, name: str) -> AbstractContextManager[object] | None:
        """The same for what may be suspended: a range of mstx's has a number, and any thread may end it, in any order."""
        return self.mark(name)

    def mark_window(self, window: Window) -> AbstractContextManager[object] | None:
        """The range of a window that joins the capture."""
        return self.mark(_name_of(window))

    def leave(self, marks: Sequence[AbstractContextManager[object]]) -> None:
        """End ranges that are still in progress: one that cannot be ended leaves no other one open."""
        for mark in marks:
            without_it(partial(mark.__exit__, None, None, None))

    def bytes_so_far(self) -> int | None:
        """What the session has written by now: torch_npu and CANN write while they record."""
        return None if self._session is None else self._session.bytes_so_far()

    def export_mode(self) -> str:
        """``thread``: what is left is to look at files. A process with a device is never forked."""
        return "thread"

    # the session

    def _ready(self) -> NpuApi:
        reason = self.probe()
        if reason is not None or self._api is None:
            raise BackendError(reason or "torch_npu cannot record here")
        return self._api

    def _clear_stranded(self) -> None:
        """A capture that could not be ended from where that was tried: it can be from its own thread, and once that is gone."""
        if not self._stranded:
            return
        self.abort()
        if self._phase == "recording":
            raise Busy(
                f"an earlier npu capture of this process records on: only its thread {self._thread.name!r} could end it"
            )

    def _refuse_foreign(self, api: NpuApi) -> None:
        found = api.foreign(None if self._session is None else self._session.profile)
        if found is None and self._session is not None and api.recording_this_thread():
            found = "another torch profiler is running on this thread"
        if found is None:
            return
        session = self._session
        if session is not None:  # a session that was only warm is theirs now: to end it would end theirs
            session.let_go()
            self._let_go()
        raise Busy(f"{found}; it is left alone")

    def _begin(self, api: NpuApi, capture: Capture) -> NpuSession:
        """A session without a warm-up ahead of it: in the device's turn."""
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

    def _let_go(self) -> None:
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
