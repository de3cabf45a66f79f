"""The one capture of a process.

torch.profiler, torch_npu.profiler and Nsight Systems crash or rob each other where two of them record in one process, in whatever order. So each
backend of this kind takes the slot before it starts, and a backend that finds it taken is busy.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from stepprof.backends.base import Busy

__all__ = ["slot"]


class _Slot:
    """A forked process has its own, which is free, whatever its parent was doing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Release the slot."""
        self._lock = threading.Lock()
        self._holder: object = None
        self._name = ""

    def take(self, backend: object, name: str) -> None:
        """Raises Busy where another backend records."""
        with self._lock:
            if self._holder is not None:
                raise Busy(f"a {self._name} capture of another stepprof backend runs in this process")
            self._holder, self._name = backend, name

    def release(self, backend: object) -> None:
        """Let go; harmless where it is not held."""
        with self._lock:
            if self._holder is backend:
                self._holder = None

    @contextlib.contextmanager
    def held_by(self, backend: object, name: str) -> Iterator[None]:
        """Take it for as long as the block runs."""
        self.take(backend, name)
        try:
            yield
        finally:
            self.release(backend)


slot = _Slot()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=slot.reset)
