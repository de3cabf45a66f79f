"""Read what the kernel counts for a thread and for this process: CPU time, run-queue delay, bytes of storage.

Only Linux provides these; elsewhere nothing is known. Block I/O wait (`delayacct_blkio_ticks`) is not read: it stays zero
unless `kernel.task_delayacct` is on, which is not the default.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from stepprof.interrupts import ours

_TASKS = "/proc/self/task"
_IO = "/proc/self/io"
_BLOCK = 512
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
        self._frozen: tuple[int, int] | None = None
        try:
            # joined as strings, here and below: each recorded window waits for it
            self._file = os.open(f"{_TASKS}/{thread}/schedstat", os.O_RDONLY | _CLOEXEC)
        except ours(OSError):
            self.ended = Path(_TASKS).is_dir() and not Path(_TASKS, str(thread)).is_dir()

    def read(self) -> tuple[int, int] | None:
        """Return the nanoseconds on a CPU and in the run queue; None: not counted, or the thread has ended."""
        if self._file is None or self._frozen is not None:
            return self._frozen
        try:
            on_cpu, waiting, _ = os.pread(self._file, 128, 0).split()
            return int(on_cpu), int(waiting)
        except ProcessLookupError:
            self.ended = True
        except ours(OSError, ValueError):
            pass
        return None

    def freeze(self) -> None:
        """Read for the last time: every later reading returns this one."""
        self._frozen = self.read()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def storage_bytes() -> tuple[int, int] | None:
    """Return the bytes that this process has read from storage and written to it; None: not known.

    Reads that the page cache answers are not counted. The system call counts in blocks of 512 bytes.
    It is ten times as fast as reading `/proc/self/io`.
    """
    if not os.access(_IO, os.F_OK):  # os.path.exists would discard a TimeoutError of the job
        return None
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_inblock * _BLOCK, used.ru_oublock * _BLOCK
