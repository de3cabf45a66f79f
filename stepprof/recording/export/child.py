"""A forked process that exports, as its parent sees it: its pipe, its state and its end."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from stepprof.host import real_time
from stepprof.host.process_identity import process_start
from stepprof.host.system_calls import signals
from stepprof.interrupts import ours
from stepprof.recording.export import fork
from stepprof.recording.export.deadlock import lock_waits
from stepprof.recording.export.job import ExportJob, Report, Worker, read_report, read_worker


@dataclass(slots=True, eq=False)
class Child:
    """A child process and the job it runs. An orphan's `pid` is that of the child which has started it, and of its group of processes."""

    job: ExportJob
    pid: int
    """0: unknown until its first line."""
    pipe: int
    began: float
    orphan: bool
    received: bytes = b""
    worker: Worker | None = None
    """The process that exports, from its first line."""
    at_end: bool = False
    """It writes no more. It may still hang: a tool such as coverage may have replaced `os._exit`."""
    waits: frozenset[str] | None = None
    waits_since: float = 0.0
    hung: bool = False
    late: bool = False
    """It was killed after `EXPORT_TIMEOUT_SECONDS`."""
    out_of_memory_before: int | None = None
    """How many processes the kernel had killed for lack of memory when it began."""

    def read(self) -> None:
        """Read what the pipe has, and look for the end."""
        try:
            data = os.read(self.pipe, 1 << 16)
        except BlockingIOError:  # there is no data yet
            return
        self.received += data
        self.at_end = not data or self.received.endswith(b"\n\n")
        if self.worker is None and b"\n" in self.received:
            self.worker = read_worker(self.received)
            self.pid = self.pid or (self.worker.session if self.orphan else self.worker.pid)

    def verdict(self) -> Report | None:
        """Return what it has reported; None if it ended before its report."""
        try:
            return read_report(self.received)
        except ours(LookupError, ValueError, TypeError):
            return None

    def status(self, *, late: bool) -> object:
        """Return the exit status of the process that exports, RUNNING or UNKNOWN."""
        status = fork.reap(self.pid, block=self.pid == 0 and (late or self.at_end))
        if not self.orphan or status is fork.RUNNING:
            return status
        if self.worker is None:  # it has not begun
            return fork.UNKNOWN if self.at_end or late else fork.RUNNING
        if self.worker.pid == self.pid:  # it could start no other process
            return status
        return fork.RUNNING if process_start(self.worker.pid) == self.worker.start else fork.UNKNOWN

    def kill(self) -> None:
        """Kill it, and what it has started in its group. A pid of 0 would be the group of this process."""
        for target in (-self.pid if self.orphan else 0, self.pid):
            if target:
                with contextlib.suppress(ProcessLookupError):
                    fork.kill(target, signals.SIGKILL)

    def look(self, seconds: float) -> bool:
        """Return whether it has hung on a lock for so long."""
        now = real_time.perf_counter()
        waits = lock_waits(self.worker.pid if self.worker else self.pid)
        if waits is None or waits != self.waits:
            self.waits, self.waits_since = waits, now
        # for good: one that was killed takes a moment to die, and waits for nothing then
        self.hung = self.hung or (waits is not None and now - self.waits_since >= seconds)
        return self.hung

    def was_killed_by_others(self, status: object, out_of_memory_now: int | None) -> bool:
        """Return whether another process has killed it, or may have: neither this one, nor the kernel for lack of memory.

        A process that ignores SIGCHLD gets no exit status, nor does that of an orphan.
        """
        unknown = status is fork.UNKNOWN and self.pid != 0
        if self.late or not (unknown or fork.is_killed(status)):
            return False
        return self.out_of_memory_before is not None and self.out_of_memory_before == out_of_memory_now
