"""Read what the kernel counts for a thread and for this process: CPU time, run-queue delay, bytes of storage.

Only Linux provides these; elsewhere nothing is known. Block I/O wait (`delayacct_blkio_ticks`) is not read: it stays zero
unless `kernel.task_delayacct` is on, which is not the default.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ThreadTimes", "storage_bytes"]

_TASKS = "/proc/self/task"
_IO = "/proc/self/io"
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


class ThreadTimes:
    """The CPU time and the run-queue delay of one thread of this process.

    The file stays open, so that a reading is one system call.

    Args:
        thread: the native id of the thread.
    """

    def __init__(self, thread: int) -> None:
        self.ended = False
        """The thread has ended."""
        self._file: int | None = None
        try:
            # joined as strings, here and below: each recorded window waits for it
            self._file = os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY | _CLOEXEC)
        except OSError:
            self.ended = Path(_TASKS).is_dir() and not Path(_TASKS, str(thread)).is_dir()

    def read(self) -> tuple[int, int] | None:
        """Return the nanoseconds on a CPU and in the run queue; None: the kernel does not count them, or
        the thread has ended.
        """
        if self._file is None:
            return None
        try:
            on_cpu, waiting, _ = os.pread(self._file, 128, 0).split()
            return int(on_cpu), int(waiting)
        except ProcessLookupError:
            self.ended = True
        except (OSError, ValueError):
            pass
        return None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def storage_bytes() -> tuple[int, int] | None:
    """Return the bytes that this process has read from storage and written to it; None: not known.

    What the page cache answers is not counted.
    """
    try:
        file = os.open(_IO, os.O_RDONLY | _CLOEXEC)
        try:
            words = os.read(file, 4096).split()
        finally:
            os.close(file)
        found = dict(zip(words[::2], words[1::2], strict=True))
        return int(found[b"read_bytes:"]), int(found[b"write_bytes:"])
    except (OSError, ValueError, KeyError):
        return None
