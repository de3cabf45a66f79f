"""Record with torch.profiler. Armed means that a device is warmed up, recording means a Kineto
session, and a job exports it after the stop.

This module knows which calls torch survives, and when. Each of these ended the process with a
segmentation fault (torch 2.13), and is refused before any call: a stop on another thread than the
start (unless the session records all threads), a start or stop while another profiler runs or is
prepared in any thread, and the export of a session that was cancelled from outside. So nothing is
held while armed: our prepared session would break if the user starts a profiler meanwhile. A slot
allows one capture at a time in the process.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from stepprof.backends.base import Backend, Busy, ExportCall, keep_forever
from stepprof.backends.other_npu_profiler import foreign_npu_profile
from stepprof.backends.process_slot import slot
from stepprof.backends.torch.api import TorchApi, device_in_use
from stepprof.backends.torch.export import TorchExport
from stepprof.backends.torch.stop import stop_all_threads
from stepprof.config.options.torch import TorchOptions
from stepprof.errors import BackendError
from stepprof.formats.kineto_writer import escaped, marked
from stepprof.formatting import install
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.run.model import Annotation, Capture

_MAX_NAMES = 4096


class TorchBackend(Backend):
    """Records with torch.profiler.

    >>> TorchBackend(TorchOptions(with_stack=True)).name
    'torch'
    """

    name = "torch"
    _is_warm: ClassVar[bool] = False
    _hooks_reported: ClassVar[bool] = False

    def __init__(self, options: TorchOptions | None = None) -> None:
        self._options = options or TorchOptions()
        self._api: TorchApi | None = None
        self._phase: Literal["idle", "prepared", "recording"] = "idle"
        self._session: Any = None
        self._thread = threading.current_thread()
        self._pid = os.getpid()
        self._on_device = False
        self._device_reported = False
        self._names: dict[str, str] = {}
        self._users_hook: Any = None
        """The job's own `sys.setprofile` function, which torch replaces while it records stacks."""

    @property
    def thread_bound(self) -> bool:
        """Whether `stop` must run on the thread that ran `start`: torch records that thread alone, or the
        job's `sys.setprofile` function is to be put back there.
        """
        hook = self._users_hook
        if self._options.with_stack and self._phase == "idle":
            hook = sys.getprofile()
        return self._of_one_thread or hook is not None

    @property
    def _of_one_thread(self) -> bool:
        """Whether torch records one thread: it can record all, but not with memory, and older versions cannot."""
        wanted = self._options.all_threads
        if wanted is None:
            wanted = not self._options.profile_memory
        return not wanted or (self._api is not None and not self._api.accepts(profile_all_threads=True))

    def probe(self) -> str | None:
        """Return why torch cannot record here. The first call imports torch and what its first
        session needs: 2 s beyond torch itself.
        """
        if self._api is None:
            try:
                self._api = TorchApi()
            except ImportError as error:
                return f"torch cannot be imported ({error}); {install('torch')}"
            except ours(RuntimeError, OSError) as error:
                return (
                    f"torch cannot be imported ({error}); where an extension of it lacks its device libraries "
                    "(torch_npu without CANN), set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
                )
        if not self._api.torch.autograd.kineto_available():
            return f"torch {self._api.version} is built without Kineto, the library that records; install a regular build"
        return self._api.activities(self._options.activities)[1]

    def arm(self) -> None:
        """Warm torch up for a device that is recorded, once per process. Nothing is held
        afterwards.

        Without a device, the first session takes only 0.5 ms longer than the others, but the search
        for prepared profilers before a warm-up takes 30 ms. So the search is left to `start`.
        Raises Busy if another profiler runs.
        """
        api = self._ready()
        activities, _ = api.activities(self._options.activities)
        if activities - api.named(["CPU"]) and not TorchBackend._is_warm:
            self.warm_up()
            return
        with slot.held_by(self, "torch"):
            self._refuse_running(api)

    def warm_up(self) -> None:
        """Run one empty session. Raises BackendError; Busy if another profiler runs or is prepared."""
        api = self._ready()
        with slot.held_by(self, "torch"):
            self._refuse_foreign(api)
            try:
                self._begin(api)
                self._end(api)
            except BaseException:
                self.abort()
                raise
            TorchBackend._is_warm = True

    def start(self, capture: Capture) -> None:
        """Begin to record: 0.4 ms, plus the search for other profilers."""
        api = self._ready()
        if self._phase != "idle":
            raise BackendError(f"the torch backend is {self._phase} already")
        slot.take(self, "torch")
        try:
            self._refuse_foreign(api)
            self._begin(api)
        except BaseException:
            self.abort()
            slot.release(self)
            raise

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """Stop, and keep the captured events; the returned export writes them (see `TorchExport`)."""
        api = self._api
        if api is None or self._phase != "recording" or self._pid != os.getpid():
            raise BackendError(f"there is no torch capture to stop: the backend is {self._phase}")
        if self._of_one_thread and threading.current_thread() is not self._thread:
            raise BackendError(
                f"this torch capture belongs to thread {self._thread.name!r}, and {threading.current_thread().name!r} "
                "cannot stop it (torch would crash); stop it on its own thread, or record with all_threads"
            )
        hurt = self._foreign_inside(api)
        if hurt is not None:
            self._abandon()
            raise BackendError(hurt)
        session = self._end(api)
        if not api.has_events(session):
            raise BackendError("another torch profiler cancelled this capture; its events are lost")
        return TorchExport(session, capture, tuple(annotations), marks=bool(self._names))

    def abort(self) -> None:
        """Leave any unfinished state: stop if that is safe, else abandon the session. Idempotent."""
        api = self._api
        if self._phase == "idle" or api is None:
            slot.release(self)
            return
        if self._pid != os.getpid():  # a fork of the recording process: the session is the parent's
            self._release()
            return
        if self._of_one_thread and threading.current_thread() is not self._thread:
            if self._thread.is_alive():
                logger.warning(
                    "torch.abort_refused", owner=self._thread.name, thread=threading.current_thread().name
                )
                _stranded[:] = [self]
                return
            self._abandon()
            api.forget_dead_session()
            return
        if self._phase == "recording" and self._foreign_inside(api) is not None:
            self._abandon()
            return
        try:
            self._stop(api)
        except ours(Exception) as error:  # the state must be left, whatever torch raises
            logger.warning("torch.abort_failed", reason=repr(error))
        if api.is_recording():  # an interrupt had divided torch's own start or stop
            api.forget_dead_session()
        self._release()

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """Return a range on this thread's stack: 0.6 us if torch has its fast kind, else 4.6."""
        api = self._api
        if api is None or self._phase != "recording":
            return None
        safe = self._names.get(name)
        if safe is None:
            fast = api.ranges_look_like_ops and not self._on_device
            safe = marked(name) if fast else escaped(name)
            if len(self._names) < _MAX_NAMES:
                self._names[name] = safe
        return api.range(safe, on_device=self._on_device)

    def leave(self, marks: Sequence[AbstractContextManager[object]]) -> None:
        """End open ranges. This must happen before `stop`: a range that ends later corrupts the process's memory (torch 2.13)."""
        ours = self._api is not None and self._phase == "recording" and self._api.is_recording()
        for mark in marks:
            if ours:
                mark.__exit__(None, None, None)
            else:  # another profiler has taken our events
                keep_forever(mark)

    def export_mode(self) -> str:
        """Return ``fork`` in a process without an accelerator, else ``inline``: it is not proven
        that a forked child is harmless there.
        """
        return "fork" if hasattr(os, "fork") and not device_in_use() else "inline"

    # the session

    def _ready(self) -> TorchApi:
        reason = self.probe()
        if reason is not None or self._api is None:
            raise BackendError(reason or "torch cannot record here")
        return self._api

    @staticmethod
    def _refuse_running(api: TorchApi) -> None:
        if api.is_recording() or api.is_recording_this_thread():
            raise Busy("another torch profiler is running in this process; it is left alone")

    def _refuse_foreign(self, api: TorchApi) -> None:
        self._refuse_running(api)
        found = api.foreign()
        if found is not None:
            raise Busy(f"another torch profiler {found} in this process; it is left alone")
        profiler = _running_profiler() if self._options.with_stack else None
        if profiler is not None:
            raise Busy(f"{profiler} is running, and torch would end it to record stacks; it is left alone")
        of_npu = foreign_npu_profile()
        if of_npu is not None:
            raise Busy(f"{of_npu}; it is left alone")

    def _foreign_inside(self, api: TorchApi) -> str | None:
        """Return what another profiler did to our running session. Stopping ours would take its events, and crash it."""
        if not api.is_recording():
            return "another torch profiler ended inside this capture and took its events"
        theirs_here = not self._of_one_thread and api.is_recording_this_thread()
        found = "is running" if theirs_here else api.foreign(ours=self._session.profiler)
        return (
            None
            if found is None
            else f"another torch profiler {found} inside this capture and has taken its events; it is left alone"
        )

    def _begin(self, api: TorchApi) -> None:
        options = self._options
        activities, problem = api.activities(options.activities)
        if problem is not None:
            raise BackendError(problem)
        flags = {}
        if not self._of_one_thread:
            flags["profile_all_threads"] = True
        # torch refuses it with stacks, which it would skip; shapes, memory, modules and flops were
        # the same with it
        if options.trace_only is not False and not options.with_stack and api.accepts(trace_only=True):
            flags["trace_only"] = True
        if not self._device_reported and api.starts_device():
            self._device_reported = True
            logger.warning(
                "torch.cuda_started",
                reason="it counts the devices, and children that are forked after that cannot use one: start such children "
                "with spawn, or before the first recorded step",
            )
        if options.with_stack and threading.getprofile() is not None and not TorchBackend._hooks_reported:
            TorchBackend._hooks_reported = True
            logger.warning(
                "torch.profile_functions_ended",
                reason="torch ends the function of threading.setprofile in the threads that run, to record stacks; threads that "
                "start after the capture have it",
            )
        self._session = api.session(options, activities, api.experimental(**flags))
        self._thread, self._pid = threading.current_thread(), os.getpid()
        self._on_device = len(activities) > 1
        self._names = {}
        self._users_hook = sys.getprofile() if options.with_stack else None
        try:
            self._phase = "prepared"
            _holder[:] = [self]
            self._session.prepare_trace()
            self._session.start_trace()
            self._phase = "recording"
        except ours(Exception) as error:
            raise BackendError(f"torch's profiler did not start: {type(error).__name__}: {error}") from error

    def _end(self, api: TorchApi) -> Any:
        """Stop, and return the session. An interrupt leaves the rest to `abort`."""
        session = self._session
        try:
            self._stop(api)
        except ours(Exception) as error:
            self._release()
            raise BackendError(f"torch's profiler did not stop: {type(error).__name__}: {error}") from error
        self._release()
        return session

    def _stop(self, api: TorchApi) -> None:
        if self._of_one_thread or not api.is_recording():
            self._session.stop_trace()
        else:
            stop_all_threads(self._session, self._named_off(api))
        hook, self._users_hook = self._users_hook, None
        if hook is not None and sys.getprofile() is None and threading.current_thread() is self._thread:
            sys.setprofile(hook)

    def stop_at_exit(self) -> None:
        """At the end of the process, stop a session whose own thread will not. Its events are lost either way."""
        if self._phase == "recording" and self._pid == os.getpid():
            with ignored(Exception):
                self._session.stop_trace()

    def _abandon(self) -> None:
        logger.warning(
            "torch.capture_abandoned", reason="another torch profiler interfered, or its thread has ended"
        )
        self._release()

    def _release(self) -> None:
        self._session, self._phase = None, "idle"
        _holder.clear()
        slot.release(self)

    def end_in_child(self) -> None:
        """Record no ops in a child that was forked meanwhile: each would take 1 kB for ever. What was recorded is the parent's."""
        api = self._api
        if api is None:
            return
        if self._phase == "recording":
            api.turn_off(self._session, self._named_off(api))
        self._release()

    def _named_off(self, api: TorchApi) -> set[Any]:
        """Return the activities to turn off. A device's own ranges stay on: removing them waits for the device."""
        return api.named(("CPU",) if self._on_device else ("CPU", "CUDA", "XPU"))


_holder: list[TorchBackend] = []
"""The backend whose session is prepared or records, if there is one."""


def _in_child() -> None:
    for backend in tuple(_holder):
        backend.end_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

_stranded: list[TorchBackend] = []


def _stop_stranded() -> None:
    """Stop a session that still runs when the interpreter ends: it would be a segmentation fault."""
    for backend in _stranded:
        backend.stop_at_exit()


# runs after the end of the session, which is registered later (handlers run last to first)
atexit.register(_stop_stranded)


def _running_profiler() -> str | None:
    """Return the profiler in C that torch would end to record stacks. `sys.getprofile` does not show yappi's."""
    hook: Any = sys.getprofile()
    if hook is not None and not callable(hook):
        return type(hook).__name__
    yappi = sys.modules.get("yappi")
    return "yappi" if yappi is not None and yappi.is_running() else None
