"""Wrap the parts of torch that the backend uses, and detect other profilers. Everything is found by
trying, never by a version: experimental options, activities, other profilers. The last matters
most: two torch profilers in one process usually end in a segmentation fault (all measured with
torch 2.13):

* ``_is_profiler_enabled`` is process-wide: True while any thread records, False while a profiler is only prepared (the warm-up of a schedule).
* ``_profiler_enabled()`` sees its own thread only, and not a session that records all threads.
* A prepared one, or one on another thread, can only be found by searching the objects:
  `gc.get_referrers` of the class, 28 ms for 830,000 objects.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from stepprof.config.options.torch import TorchOptions
from stepprof.interrupts import ignored, ours

_DEVICE_FILES = ("/dev/nvidia-uvm", "/dev/davinci", "/dev/kfd", "/dev/accel")
_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files that exist if CUDA or ROCm has a driver."""


class TorchApi:
    """The parts of torch that the backend uses; making one pays the imports.

    Raises:
        ImportError, RuntimeError, OSError: torch cannot be imported here.
    """

    def __init__(self) -> None:
        import torch
        import torch.autograd.profiler
        import torch.profiler
        from torch._C import _profiler

        self.torch: Any = torch
        self.profiler: Any = torch.autograd.profiler
        self.session_class: Any = getattr(torch.profiler, "_KinetoProfile")  # noqa: B009 - torch does not export it, and documents it
        self._experimental: Any = getattr(_profiler, "_ExperimentalConfig", None)
        self._fast_range: Any = getattr(_profiler, "_RecordFunctionFast", None)
        # the slow import of a process's first prepare (2 s); torch would do it there
        if hasattr(torch, "_inductor"):
            import torch._inductor.config

    @property
    def version(self) -> str:
        """Return the version of torch."""
        return str(self.torch.__version__)

    def accepts(self, **experimental: object) -> bool:
        """Return whether this torch has the experimental options."""
        return self.experimental(**experimental) is not None

    def experimental(self, **options: object) -> Any:
        """Return an experimental configuration, or None if this torch lacks an option."""
        if self._experimental is None:
            return None
        try:
            return self._experimental(**options)
        except ours(TypeError):
            return None

    # activities

    def activities(self, wanted: Iterable[str] | None) -> tuple[set[Any], str | None]:
        """Return the activities to record, and why requested ones cannot be recorded.

        By default: the CPU, and each device that this process already uses. Recording another
        device would create a context on it, which takes hundreds of MB of its memory. Even its
        existence is not checked: torch would count CUDA's devices, which keeps children that are
        forked later from using one (torch's own preparation does so: `starts_device`).
        """
        names = self.torch.profiler.ProfilerActivity.__members__
        by_name = {name.lower(): member for name, member in names.items()}
        in_use = {name for name in by_name if name != "cpu" and self._is_initialized(name)}
        if wanted is None and not in_use:
            return {by_name["cpu"]}, None
        supported = self.torch.profiler.supported_activities()
        there = {name for name, member in by_name.items() if member in supported}
        if wanted is None:
            return {by_name[name] for name in there & {"cpu", *in_use}}, None
        missing = [name for name in wanted if name not in there or not self._is_available(name)]
        if missing:
            found = ", ".join(sorted(name for name in there if self._is_available(name)))
            problem = (
                f"torch.activities: {', '.join(missing)} cannot be recorded by torch {self.version} here, only {found}; "
                "take it out of the list, or install a torch that is built for the device"
            )
            return set(), problem
        return {by_name[name] for name in wanted}, None

    def starts_device(self) -> bool:
        """Return whether preparing a capture starts CUDA or ROCm in this process: torch counts the
        devices there, regardless of what is recorded (``prepareProfiler`` of torch 2.11, seen on an
        H100).
        """
        version = self.torch.version
        built_for_one = version.cuda is not None or version.hip is not None
        return built_for_one and any(Path(path).exists() for path in _DRIVERS) and not device_in_use()

    def named(self, names: Iterable[str]) -> set[Any]:
        """Return the activities of these names that this torch knows."""
        known = self.torch.profiler.ProfilerActivity.__members__
        return {known[name] for name in names if name in known}

    def _device(self, name: str) -> Any:
        if name == "privateuse1":
            name = str(self.torch._C._get_privateuse1_backend_name())
        return getattr(self.torch, name, None)

    def _is_available(self, name: str) -> bool:
        device = self._device(name)
        return name == "cpu" or device is None or bool(getattr(device, "is_available", lambda: True)())

    def _is_initialized(self, name: str) -> bool:
        device = self._device(name)
        if device is None or not getattr(device, "is_initialized", lambda: True)():
            return False
        return self._is_available(name)

    # sessions

    def session(self, options: TorchOptions, activities: set[Any], experimental: Any) -> Any:
        """Return a profiler that has not been prepared yet."""
        return self.session_class(
            activities=activities,
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
            with_flops=options.with_flops,
            with_modules=options.with_modules,
            **({} if experimental is None else {"experimental_config": experimental}),
        )

    def is_recording(self) -> bool:
        """Return whether some thread of this process records, for any code."""
        return bool(getattr(self.profiler, "_is_profiler_enabled", False))

    def is_recording_this_thread(self) -> bool:
        """Return whether a session that belongs to this thread records."""
        return bool(self.torch._C._autograd._profiler_enabled())

    def foreign(self, ours: object = None) -> str | None:
        """Describe a profiler that is prepared or running and not `ours`, or return None. Objects hidden by `gc.freeze` are not seen."""
        found = self._foreign(ours)
        if found is not None:
            gc.collect()  # a dropped one may only wait for the garbage collector: torch's profilers are cycles
            found = self._foreign(ours)
        return found

    def _foreign(self, ours: object) -> str | None:
        kind = self.profiler.profile
        for candidate in gc.get_referrers(kind):
            if type(candidate) is not kind or candidate is ours:
                continue
            if getattr(candidate, "entered", False) and getattr(candidate, "kineto_results", None) is None:
                return "is running" if getattr(candidate, "profiling_start_time_ns", 0) else "is prepared"
        return None

    def forget_dead_session(self) -> None:
        """Clear the process-wide flag after our session whose thread has ended, or whose stop was interrupted: nothing else does."""
        self.profiler._run_on_profiler_stop()

    def turn_off(self, session: Any, activities: set[Any]) -> None:
        """Record nothing more in this process, a forked child, without a stop, which would copy all events."""
        with ignored(Exception):  # this torch cannot do it
            session.toggle_collection_dynamic(False, activities)
        if session.with_stack:
            sys.setprofile(None)
        self.profiler._run_on_profiler_stop()

    @staticmethod
    def has_events(session: Any) -> bool:
        """Return whether a stopped session has results. Without a start time it was cancelled from
        outside, and exporting it is a segmentation fault.
        """
        results = getattr(session.profiler, "kineto_results", None)
        if results is None:
            return False
        for clock in ("trace_start_ns", "trace_start_us"):
            if hasattr(results, clock):
                return bool(getattr(results, clock)())
        return True

    def range(self, name: str, *, on_device: bool) -> AbstractContextManager[object]:
        """Return a range in the trace: the fast kind if torch has it (which records it as an op),
        the slow kind for a capture with a device, since only that appears on the device's lanes.
        """
        make = (
            self.torch.profiler.record_function if on_device or self._fast_range is None else self._fast_range
        )
        made: AbstractContextManager[object] = make(name)
        return made

    @property
    def ranges_look_like_ops(self) -> bool:
        """Return whether there is a fast kind of range."""
        return self._fast_range is not None


def device_in_use() -> bool:
    """Return whether this process holds a context on an accelerator, by torch or other code.
    Imports nothing, and counts no devices (see `TorchApi.activities`).
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        accelerator = getattr(torch, "accelerator", None)
        built_for = None if accelerator is None else accelerator.current_accelerator()
        name_of_it = () if built_for is None else (str(built_for.type),)
        for name in dict.fromkeys((*name_of_it, "cuda", "xpu", "npu", "mtia", "hpu")):
            is_initialized = getattr(getattr(torch, name, None), "is_initialized", None)
            if is_initialized is not None and is_initialized():
                return True
            if is_initialized is None and name in name_of_it and torch.accelerator.is_available():
                return True
    return _device_file_open()


def _device_file_open() -> bool:
    """Return whether a device file is open: other libraries may use a driver without torch (CuPy, JAX)."""
    try:
        return any(
            str(entry.readlink()).startswith(_DEVICE_FILES)
            for entry in tuple(Path("/proc/self/fd").iterdir())
        )
    except ours(OSError):  # no /proc, or a descriptor that was closed meanwhile: torch's answer counts
        return False
