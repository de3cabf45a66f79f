"""Wrap the parts of torch that the memory backend uses, and hold the one allocation history of the
process.

Features are found by trying and by signatures, never by a version. torch keeps one history for all
devices of a process and does not say who switched it on. A history that this module did not switch
on belongs to other code and is left alone. Switching a history off discards it, so a snapshot comes
first.

Each of torch's calls initializes CUDA if nothing has yet, which takes hundreds of MB of device
memory. So none is made before the process itself has initialized CUDA.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepprof.backends.base import Busy
from stepprof.config.options.memory import MemoryOptions
from stepprof.errors import BackendError
from stepprof.interrupts import ours
from stepprof.log import logger

_DEVICES = Path("/dev")
_DEVICE_FILES = ("nvidia[0-9]*", "nvhost-*", "nvmap", "dxg", "kfd")
"""Device files: of NVIDIA's driver, on Jetson, under WSL, of AMD's driver."""

Observer = Callable[[int, int, int, int], None]
"""Called with the device and the bytes that were requested, that exist, and that are free."""


class MemoryApi:
    """The parts of torch that the backend uses; making one pays the import. Raises ImportError, RuntimeError, OSError."""

    def __init__(self) -> None:
        import torch
        import torch.cuda.memory

        self.torch: Any = torch
        self.memory: Any = torch.cuda.memory

    def obstacle(self) -> str | None:
        """Return why there is no allocator to record here. Initializes nothing."""
        torch = self.torch
        if not (torch.version.cuda or getattr(torch.version, "hip", None)):
            return (
                f'this torch ({torch.__version__}) has no CUDA: backend = "memory" records CUDA\'s allocator and needs a torch '
                'that is built for it; did you mean backend = "torch" with torch.profile_memory = true?'
            )
        if not self._devices():
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
            return (
                f'no CUDA device is visible to this process{hint}: backend = "memory" records its allocator'
            )
        allocator = str(self.memory.get_allocator_backend())
        if allocator != "native":
            remedy = (
                f"take backend:{allocator} out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF)"
                if allocator == "cudaMallocAsync"
                else "do not replace it with torch.cuda.memory.change_current_allocator"
            )
            return f"CUDA's allocator here is {allocator}, which keeps no history; {remedy}"
        return None

    def _devices(self) -> int:
        """Return the number of devices, or 1 if it cannot be known yet.

        Before the process uses CUDA, only the driver's tools are asked. CUDA's own count, which
        torch uses where these tools fail (MIG, Jetson), would keep children that are forked later
        from using a device.
        """
        cuda = self.torch.cuda
        if self.is_in_use:
            return int(cuda.device_count())
        by_tools = (
            "_device_count_amdsmi" if getattr(self.torch.version, "hip", None) else "_device_count_nvml"
        )
        count = int(getattr(cuda, by_tools, lambda: -1)())
        return count if count >= 0 else int(any(any(_DEVICES.glob(name)) for name in _DEVICE_FILES))

    @property
    def is_in_use(self) -> bool:
        """Whether this process has initialized CUDA."""
        return bool(self.torch.cuda.is_initialized())

    def is_recording(self) -> bool:
        """Return whether any code of this process keeps a history. False for a torch that cannot report it."""
        ask = getattr(self.torch._C, "_cuda_isHistoryEnabled", None)
        return ask is not None and self.is_in_use and bool(ask())

    def switch_on(self, entries: int, options: MemoryOptions) -> None:
        """Keep the latest allocations and frees, up to a limit."""
        context = None if options.context == "none" else options.context
        wanted = {"context": context, "stacks": options.stacks, "max_entries": entries}
        known = inspect.signature(self.memory._record_memory_history).parameters
        missing = [name for name in wanted if name not in known]
        if missing:
            raise BackendError(
                f"torch {self.torch.__version__} cannot limit its allocation history ({', '.join(missing)} unknown); torch 2.1 or newer can"
            )
        self.memory._record_memory_history("all", **wanted)

    def switch_off(self) -> None:
        """Keep no history, and discard what was kept."""
        self.memory._record_memory_history(None)

    def snapshot(self) -> dict[str, Any]:
        """Return the current allocations and the history."""
        taken: dict[str, Any] = self.memory._snapshot()
        return taken

    def stats(self) -> list[dict[str, int]]:
        """Return, for each device on which this process has memory, the allocated bytes and their
        peak since the start or the last reset.
        """
        found = []
        for device in range(self.torch.cuda.device_count()):
            values = self.torch.cuda.memory_stats(device)
            if not values.get("reserved_bytes.all.peak"):
                continue
            found.append(
                {
                    "device": device,
                    "allocated_bytes": values.get("allocated_bytes.all.current", 0),
                    "reserved_bytes": values.get("reserved_bytes.all.current", 0),
                    "max_allocated_bytes": values.get("allocated_bytes.all.peak", 0),
                    "max_reserved_bytes": values.get("reserved_bytes.all.peak", 0),
                    "num_alloc_retries": values.get("num_alloc_retries", 0),
                    "num_ooms": values.get("num_ooms", 0),
                }
            )
        return found

    def observe(self, observer: Observer) -> None:
        """Call the observer whenever CUDA runs out of memory, from now on or from when CUDA is
        initialized. torch cannot remove it again.
        """
        attach = self.torch._C._cuda_attach_out_of_memory_observer
        self.when_in_use(lambda: attach(observer))

    def when_in_use(self, act: Callable[[], object]) -> None:
        """Call the function now if CUDA is initialized, else right after its initialization. There
        its exceptions are logged, because they would reach the user.
        """

        def safely() -> None:
            try:
                act()
            except ours(Exception) as error:  # as above
                logger.warning("memory.oom_unwatched", reason=f"{type(error).__name__}: {error}")

        self.torch.cuda._lazy_call(safely)


class _History:
    """The one history of this process. A forked process begins without one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """End the recording."""
        self._lock = threading.RLock()
        self._holder: object = None
        self._outside: MemoryOptions | None = None
        self.running: MemoryOptions | None = None
        """The settings of our running history."""

    def check(self, api: MemoryApi) -> None:
        """Raise Busy if a history runs that is not ours."""
        with self._lock:
            if self._holder is not None:
                raise Busy("the allocation history is in another capture of this process")
            if self._outside is None and api.is_recording():
                raise Busy(
                    "another allocation history runs in this process (torch.cuda.memory._record_memory_history); it is left alone"
                )

    def begin(self, holder: object, api: MemoryApi, options: MemoryOptions) -> None:
        """Start a history for a window. Raises Busy, or BackendError."""
        with self._lock:
            self.check(api)
            if self._outside is not None:
                api.switch_off()
            api.switch_on(options.max_entries, options)
            self._holder, self.running = holder, options

    def end(self, holder: object, api: MemoryApi) -> None:
        """End the history of the window, if there is one, and restart the one that runs outside windows."""
        with self._lock:
            if self._holder is not holder:
                return
            self._holder = self.running = None
            api.switch_off()
            if self._outside is not None:
                api.switch_on(self._outside.on_oom_entries, self._outside)
                self.running = self._outside

    def start_outside(self, api: MemoryApi, options: MemoryOptions) -> None:
        """Start the history that runs outside windows. Raises Busy, or BackendError."""
        with self._lock:
            if self._outside is not None:
                return
            if self._holder is None:
                self.check(api)
                api.switch_on(options.on_oom_entries, options)
                self.running = options
            self._outside = options

    def stop_outside(self, api: MemoryApi) -> None:
        """Stop the history that runs outside windows."""
        with self._lock:
            if self._outside is not None and self._holder is None:
                self.running = None
                api.switch_off()
            self._outside = None


history = _History()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=history.reset)
