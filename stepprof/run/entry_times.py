"""The times of one manifest entry: entered, armed, begun, ended, and the CPU time in between.

Each window, and each separately captured region, has one. Only selected ones are timed, because a
reading of the CPU clocks is a system call.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.interrupts import ours

if TYPE_CHECKING:
    from stepprof.host.clock import Anchor


@dataclass(eq=False, slots=True)
class Timing:
    """Times by ``perf_counter_ns``; `keys` converts them for the manifest."""

    entered_ns: int
    """When the window or the region was entered."""
    waited_seconds: float = 0.0
    """How long it had waited for the stop of another capture."""
    began_ns: int | None = None
    ended_ns: int | None = None
    _armed: tuple[int, int] | None = None
    _thread: int = 0
    _cpu_began_ns: int = 0
    _thread_began_ns: int = 0
    _cpu_ns: int | None = None
    _thread_cpu_ns: int | None = None

    def waited(self, seconds: float) -> None:
        """Add a completed wait."""
        self.waited_seconds += seconds
        self.entered_ns = real_time.perf_counter_ns()

    def armed(self, began_ns: int, ended_ns: int) -> None:
        """Set when the backend was armed for it: after the entry, or long before."""
        self._armed = (began_ns, ended_ns)

    def begin(self, now_ns: int) -> None:
        """Begin the body on this thread, also if its capture has ended already."""
        if self.ended_ns is not None:
            return
        self.began_ns = now_ns
        self._thread = threading.get_native_id()
        self._thread_began_ns = real_time.thread_time_ns()
        self._cpu_began_ns = real_time.process_time_ns()

    def end(self, now_ns: int, *, moved: bool = False) -> bool:
        """End the body, or its capture before it. Only the first call counts; return whether this was
        it.

        A body that never began has no length.

        Args:
            now_ns: when it ended.
            moved: the body may have continued in another thread, the calling one.
        """
        if self.ended_ns is not None:
            return False
        if self.began_ns is None:
            self.begin(now_ns)
        self.ended_ns = now_ns
        self._cpu_ns = real_time.process_time_ns() - self._cpu_began_ns
        if threading.get_native_id() == self._thread:
            self._thread_cpu_ns = real_time.thread_time_ns() - self._thread_began_ns
        elif not moved:
            thread_ns = _cpu_ns_of(self._thread)
            self._thread_cpu_ns = None if thread_ns is None else thread_ns - self._thread_began_ns
        return True

    def keys(self, anchor: Anchor) -> dict[str, Any]:
        """Return the known times as keys of the manifest."""
        begun, ended, armed = self.began_ns, self.ended_ns, self._armed
        start_ns = None
        if begun is not None:
            start_ns = begun - self.entered_ns
            if armed is not None and armed[0] >= self.entered_ns:
                start_ns -= armed[1] - armed[0]
        return {
            "start_unix_ns": anchor.to_unix_ns(self.entered_ns if begun is None else begun),
            "end_unix_ns": None if ended is None else anchor.to_unix_ns(ended),
            "arm_seconds": 0.0 if armed is None else _seconds(armed[1] - armed[0]),
            "arm_unix_ns": None if armed is None else anchor.to_unix_ns(armed[0]),
            "start_seconds": _seconds(start_ns),
            "wait_seconds": round(self.waited_seconds, 6),
            "cpu_seconds": _seconds(self._cpu_ns),
            "thread_cpu_seconds": _seconds(self._thread_cpu_ns),
        }


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else round(nanoseconds / 1e9, 6)


def _cpu_ns_of(thread: int) -> int | None:
    """Return the CPU time of another thread of this process; None if it has ended, or the system does not report it."""
    try:
        # the clock's number on Linux: of one thread (4), the time counted by the scheduler (2)
        return time.clock_gettime_ns((~thread << 3) | 4 | 2)
    except ours(AttributeError, OSError):
        return None
