"""Allow one capture per process. If two of torch.profiler, torch_npu.profiler and Nsight Systems
record in one process, they crash or lose events. So each such backend takes the slot before it
starts, and is busy if it is taken.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from stepprof.backends.base import Busy


class _Slot:
    """The slot of this process. A forked process begins with a free one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Release the slot."""
        self._lock = threading.Lock()
        self._holder: object = None
        self._name = ""

    def take(self, backend: object, name: str) -> None:
        """Take the slot. Raise Busy if another backend records. An interrupt may have left it to the same backend."""
        with self._lock:
            if self._holder is not None and self._holder is not backend:
                raise Busy(f"a {self._name} capture of another stepprof backend runs in this process")
            self._holder, self._name = backend, name

    def release(self, backend: object) -> None:
        """Release the slot; do nothing if it is not held."""
        with self._lock:
            if self._holder is backend:
                self._holder = None

    @contextlib.contextmanager
    def held_by(self, backend: object, name: str) -> Iterator[None]:
        """Hold the slot while the block runs."""
        self.take(backend, name)
        try:
            yield
        finally:
            self.release(backend)


slot = _Slot()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=slot.reset)
