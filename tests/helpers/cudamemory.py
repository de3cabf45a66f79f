"""Stand in for CUDA's caching allocator on a machine without a device. It replaces the functions of
torch's C module that `torch.cuda.memory` calls, below torch's own Python code.

It has the data of the real one, in the tables that torch documents at
`torch.cuda.memory._snapshot`. These are segments with blocks, and a ring of entries per device
while a history is on. The stacks are this process's real ones. The tests in tests/real/gpu/ check
what the real allocator does.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

SEGMENT = 20 << 20


class Allocator:
    """One device of 1 GiB, in segments of 20 MiB or more that are never released."""

    total = 1 << 30

    def __init__(self) -> None:
        self.on = False
        self.entries: deque[dict[str, Any]] = deque(maxlen=1)
        self.context: str | None = None
        self.blocks: dict[int, dict[str, Any]] = {}
        self.observers: list[Callable[..., object]] = []
        self.calls: list[str] = []
        self.switched: list[dict[str, Any]] = []
        self.peak = 0
        self.ooms = 0
        self._address = 0x7F0000000000

    # -- the calls of a program

    def initialize(self) -> None:
        """Use CUDA for the first time: torch then makes the calls that it had queued."""
        import torch

        torch.cuda._initialized = True
        for call, _ in torch.cuda._queued_calls:
            call()

    def alloc(self, size: int) -> int:
        """Return the address of a block. Raise torch.OutOfMemoryError if there is no room."""
        if self.allocated + size > self.total:
            self.ooms += 1
            self._note("oom", size, device_free=self.total - self.allocated)
            for observer in self.observers:
                observer(0, size, self.total, self.total - self.allocated)
            import torch

            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self._address += max(size, SEGMENT)
        block = {
            "address": self._address,
            "size": -(-size // 512) * 512,
            "requested_size": size,
            "state": "active_allocated",
            "frames": _stack() if self.on and self.context else [],
        }
        self.blocks[self._address] = block
        self.peak = max(self.peak, self.allocated)
        self._note("alloc", size, addr=self._address)
        return self._address

    def free(self, address: int) -> None:
        """Free a block."""
        block = self.blocks.pop(address)
        for action in ("free_requested", "free_completed"):
            self._note(action, block["requested_size"], block["frames"], addr=address)

    @property
    def allocated(self) -> int:
        return sum(block["requested_size"] for block in self.blocks.values())

    def _note(self, action: str, size: int, allocated_by: Any = None, **where: int) -> None:
        if self.on:
            entry = {"action": action, **where, "size": size, "stream": 0, "time_us": time.time_ns() // 1000}
            if self.context == "all" or (self.context == "alloc" and action in ("alloc", "oom")):
                entry["frames"] = _stack()
            elif self.context == "alloc" and allocated_by:
                entry["frames"] = allocated_by
            self.entries.append(entry)

    # -- the functions of torch's C module

    def record(
        self, enabled: Any, context: Any, stacks: str, max_entries: int, clear: bool, *more: Any
    ) -> None:
        self._assert_in_use()
        self.calls.append("on" if enabled else "off")
        self.on, self.context = enabled is not None, context
        if not enabled or clear:
            self.entries.clear()
        if enabled:
            self.entries = deque(self.entries, maxlen=max_entries)
            self.switched.append({"context": context, "stacks": stacks, "max_entries": max_entries})

    def is_on(self) -> bool:
        self._assert_in_use()
        return self.on

    def attach(self, observer: Callable[..., object]) -> None:
        self._assert_in_use()
        self.observers.append(observer)

    @staticmethod
    def _assert_in_use() -> None:
        import torch

        assert torch.cuda.is_initialized(), "this call would have made a context on the device"

    def snapshot(self, pool: object) -> dict[str, Any]:
        self.calls.append("snapshot")
        segments = [
            {
                "device": 0, "address": address, "total_size": max(block["size"], SEGMENT), "stream": 0,
                "allocated_size": block["size"], "active_size": block["size"],
                "requested_size": block["requested_size"], "segment_type": "large", "segment_pool_id": (0, 0),
                "is_expandable": False, "frames": block["frames"], "blocks": [block],
            }
            for address, block in self.blocks.items()
        ]  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [list(self.entries)],
            "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.0},
            "external_annotations": [],
        }

    def reset_peak(self, device: int) -> None:
        self.peak = self.allocated

    def stats(self, device: int) -> dict[str, Any]:
        def stat(current: int, peak: int) -> dict[str, Any]:
            return {"all": {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}}

        return {
            "allocated_bytes": stat(self.allocated, self.peak),
            "reserved_bytes": stat(max(self.peak, SEGMENT), max(self.peak, SEGMENT)),
            "num_alloc_retries": self.ooms,
            "num_ooms": self.ooms,
        }


def _stack() -> list[dict[str, Any]]:
    """Return this thread's frames, the innermost first, without those of the stand-in."""
    frames = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(frames) < 20:
        if frame.f_code.co_filename != __file__:
            where = {
                "filename": frame.f_code.co_filename,
                "line": frame.f_lineno,
                "name": frame.f_code.co_name,
            }
            frames.append(where)
        frame = frame.f_back
    return frames


def install(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """Install the stand-in below torch, so that torch behaves like a build with CUDA."""
    import torch

    from stepprof.backends.memory.api import history
    from stepprof.recording import oom_snapshots

    allocator = Allocator()
    functions = {
        "_cuda_record_memory_history": allocator.record,
        "_cuda_isHistoryEnabled": allocator.is_on,
        "_cuda_memorySnapshot": allocator.snapshot,
        "_cuda_memoryStats": allocator.stats,
        "_cuda_resetPeakMemoryStats": allocator.reset_peak,
        "_cuda_attach_out_of_memory_observer": allocator.attach,
        "_cuda_getAllocatorBackend": lambda: "native",
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for count in ("device_count", "_device_count_nvml"):
        monkeypatch.setattr(torch.cuda, count, lambda: 1)
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_queued_calls", [])
    monkeypatch.setattr(oom_snapshots, "_attached", False)
    history.reset()
    return allocator


def tensors_of(allocator: Allocator) -> AbstractContextManager[object]:
    """Return a context in which each ``torch.empty`` of a number of bytes is a block of the
    stand-in until it is freed.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Counted(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is not torch.empty or not isinstance(args[0], int):
                return function(*args, **(kwargs or {}))
            address = allocator.alloc(args[0])
            made = function(*args, **(kwargs or {}))
            weakref.finalize(made, allocator.free, address)
            return made

    return Counted()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """Return the stand-in for one test."""
    return install(monkeypatch)


@pytest.fixture
def rehearsed(cuda: Allocator, monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """Return the stand-in for the allocator with one block."""
    import torch

    for name in ("init", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a card")
    cuda.alloc(1 << 20)
    return cuda
