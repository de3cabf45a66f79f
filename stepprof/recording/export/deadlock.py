"""Detect a forked child that waits for a lock that will never be released.

A fork copies the locks that other threads of the parent hold, but not those threads. A child that
needs such a lock sleeps for ever in futex(2), in a wait that has no timeout and is private to its
memory: only a thread of the child could end it. So a child hangs if all of its threads are in such
waits and none runs any more. A child that computes, or waits for the processor, a disk, a pipe, a
process or a timer, is in no such wait, however slow it is.
"""

from __future__ import annotations

import platform
from pathlib import Path

from stepprof.interrupts import ours

_PROC = Path("/proc")
_FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine())
"""The number of the system call, as /proc shows it."""
_OPERATION, _PRIVATE = 0x7F, 0x80
_WAITS = (0, 9)  # FUTEX_WAIT, FUTEX_WAIT_BITSET


def lock_waits(pid: int) -> frozenset[str] | None:
    """Return the lock wait of each thread of a process. It stays equal while no thread runs.

    Return None if a thread is in no such wait, or if this is unknown: without Linux's /proc, without
    permission, on a processor whose system calls are not known here.
    """
    try:
        waits = [_lock_wait(thread) for thread in (_PROC / str(pid) / "task").iterdir()]
    except ours(OSError):
        return None
    found = frozenset(wait for wait in waits if wait is not None)
    return found if found and len(found) == len(waits) else None


def _lock_wait(thread: Path) -> str | None:
    """Return the wait of one thread with its count of context switches, or None if it is in none.

    Raises:
        OSError: the thread has ended, or may not be looked at.
    """
    call = (thread / "syscall").read_text().split()
    if len(call) < 5 or call[0] != _FUTEX:  # one word, "running", is also a thread that waits for a processor
        return None
    operation, timeout = int(call[2], 16), int(call[4], 16)
    if timeout or operation & _OPERATION not in _WAITS or not operation & _PRIVATE:
        return None
    status = (thread / "status").read_text(errors="replace").splitlines()
    return " ".join([thread.name, *call, *(line for line in status if "ctxt_switches" in line)])
