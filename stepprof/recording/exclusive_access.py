"""Exclusive access to the local target: one thread at a time changes its state and calls its backend.

The thread has access from the check to the end of the change. Another thread waits, with a timeout. A signal handler or finalizer that
interrupts the thread in between is refused instead of deadlocked.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from stepprof.errors import StateError
from stepprof.host import real_time
from stepprof.host.frames import frames


class ExclusiveAccess:
    """Lets one thread act on the target at a time.

    The access belongs to the function that acquired it, for as long as that function runs. If an
    interrupt (Ctrl-C, `ray.cancel`) prevented the release, the next caller finds that the function
    is no longer on any stack, and takes over. Acquiring and releasing are one operation of a dict
    each, which no interrupt can divide.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, FrameType]] = {}
        # reentrant, because a signal handler may interrupt
        self._looking = threading.RLock()

    def acquire(self, timeout: float, *, by: FrameType | None = None) -> bool:
        """Wait for the access, ``timeout`` seconds at most (0: do not wait). Raises StateError if this thread has it already.

        Args:
            timeout: how long to wait, in seconds.
            by: the frame of the function that holds and releases it; None: the caller's.
        """
        mine = (threading.get_ident(), by or sys._getframe(1))
        deadline = real_time.monotonic() + timeout
        pause = 0.0001
        while self._held.setdefault("access", mine) is not mine:
            holder = self._holder()
            if holder is None:
                continue
            if holder[0] == mine[0]:
                raise StateError(
                    "this thread is already acting on the target: a handler that interrupts it can only post a request"
                )
            left = deadline - real_time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.002)
        return True

    def take(self, timeout: float) -> bool:
        """Acquire it for the calling function. Return False also if this thread has it already."""
        try:
            return self.acquire(timeout, by=sys._getframe(1))
        except StateError:
            return False

    def release(self) -> None:
        """End the access."""
        self._held.pop("access", None)

    def _holder(self) -> tuple[int, FrameType] | None:
        """Return the thread and the function that have access. A function that is no longer on any stack loses it."""
        holder = self._held.get("access")
        if holder is None or _runs(*holder):
            return holder
        with self._looking:
            if self._held.get("access") is holder:
                del self._held["access"]
        return None

    @property
    def held_elsewhere(self) -> bool:
        """Return whether another thread acts on the target now."""
        holder = self._holder()
        return holder is not None and holder[0] != threading.get_ident()


def _runs(thread: int, frame: FrameType) -> bool:
    """Return whether this frame is on the stack of that thread."""
    top = frames().get(thread)
    while top is not None and top is not frame:
        top = top.f_back
    return top is not None
