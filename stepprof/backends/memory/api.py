"""What the memory backend asks of torch, found by trying and by signatures, never by a version; and the one allocation history that a process has.

torch keeps one history for all devices of a process, and none says whose it is: what runs and was not switched on here belongs to other code, and is left alone. Switching it off throws away what
it holds, so a snapshot comes before. Each of torch's calls initializes CUDA where nothing has yet, which takes hundreds of MB of a device: so none is made before the process itself has.
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
from stepprof.log import logger

__all__ = ["MemoryApi", "history"]

_DEVICES = Path("/dev")
_DEVICE_FILES = ("nvidia[0-9]*", "nvhost-*", "nvmap", "dxg", "kfd")
"""Of NVIDIA's driver, on Jetson, under WSL, of AMD's."""

Observer = Callable[[int, int, int, int], None]
"""Told of the device, the bytes that were asked for, the bytes there are, and those that are free."""


class MemoryApi:
    """The parts of torch that the backend uses; making one pays the import. Raises ImportError, RuntimeError, OSError."""

    def __init__(self) -> None:
        import torch
        import torch.cuda.memory

        self.torch: Any = torch
        self.memory: Any = torch.cuda.memory

    def obstacle(self) -> str | None:
        """Why there is no allocator to record here. Initializes nothing."""
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
                else "leave torch its own (torch.cuda.memory.change_current_allocator)"
            )
            return f"CUDA's allocator here is {allocator}, which keeps no history; {remedy}"
        return None

    def _devices(self) -> int:
        """How many there are, or one where that cannot be told yet.

        Before the process uses CUDA the driver's tools are asked alone: CUDA's own count, which torch takes where they do not tell (MIG, Jetson), keeps children that are forked later from using a
        device.
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
        """Whether a history is kept, by whomever; a torch that does not tell is taken to keep none."""
        ask = getattr(self.torch._C, "_cuda_isHistoryEnabled", None)
        return ask is not None and self.is_in_use and bool(ask())

    def switch_on(self, entries: int, options: MemoryOptions) -> None:
        """Keep the last so many allocations and frees."""
        context = None if options.context == "none" else options.context
        wanted = {"context": context, "stacks": options.stacks, "max_entries": entries}
        known = inspect.signature(self.memory._record_memory_history).parameters
        missing = [name for name in wanted if name not in known]
        if missing:
            raise BackendError(
                f"torch {self.torch.__version__} cannot bound its allocation history ({', '.join(missing)} unknown); torch 2.1 or newer can"
            )
        self.memory._record_memory_history("all", **wanted)

    def switch_off(self) -> None:
        """Keep none; what there is, is gone."""
        self.memory._record_memory_history(None)

    def snapshot(self) -> dict[str, Any]:
        """What is allocated, and the history."""
        taken: dict[str, Any] = self.memory._snapshot()
        return taken

    def stats(self) -> list[dict[str, int]]:
        """Of each device that this process has memory on: what it holds, and the most that it held since the start or the user's last reset."""
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
        """Have it called whenever CUDA runs out of memory, from now on and for good: torch cannot take it back. Where CUDA is not initialized yet, as soon as it is."""
        attach = self.torch._C._cuda_attach_out_of_memory_observer
        self.when_in_use(lambda: attach(observer))

    def when_in_use(self, act: Callable[[], object]) -> None:
        """Do it now where CUDA is initialized, else right after that: where an exception would reach the user, so that it is logged instead."""

        def safely() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - as above
                logger.warning("memory.oom_unwatched", reason=f"{type(error).__name__}: {error}")

        self.torch.cuda._lazy_call(safely)


class _History:
    """The one history of this process. A forked process has none, whatever its parent had."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """End the recording."""
        self._lock = threading.RLock()
        self._holder: object = None
        self._standing: MemoryOptions | None = None
        self.running: MemoryOptions | None = None
        """What the history of ours that runs is kept with."""

    def check(self, api: MemoryApi) -> None:
        """Raises Busy where a history runs that is not ours."""
        with self._lock:
            if self._holder is not None:
                raise Busy("the allocation history is in another capture of this process")
            if self._standing is None and api.is_recording():
                raise Busy(
                    "another allocation history runs in this process (torch.cuda.memory._record_memory_history); it is left alone"
                )

    def begin(self, holder: object, api: MemoryApi, options: MemoryOptions) -> None:
        """Keep a new one for a window. Raises Busy, or BackendError."""
        with self._lock:
            self.check(api)
            if self._standing is not None:
                api.switch_off()
            api.switch_on(options.max_entries, options)
            self._holder, self.running = holder, options

    def end(self, holder: object, api: MemoryApi) -> None:
        """The window is over; harmless where it has none. What is kept outside windows is kept again."""
        with self._lock:
            if self._holder is not holder:
                return
            self._holder = self.running = None
            api.switch_off()
            if self._standing is not None:
                api.switch_on(self._standing.on_oom_entries, self._standing)
                self.running = self._standing

    def stand(self, api: MemoryApi, options: MemoryOptions) -> None:
        """Keep one outside windows, too. Raises Busy, or BackendError."""
        with self._lock:
            if self._standing is not None:
                return
            if self._holder is None:
                self.check(api)
                api.switch_on(options.on_oom_entries, options)
                self.running = options
            self._standing = options

    def stand_down(self, api: MemoryApi) -> None:
        """Outside windows none is kept any more."""
        with self._lock:
            if self._standing is not None and self._holder is None:
                self.running = None
                api.switch_off()
            self._standing = None


history = _History()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=history.reset)
