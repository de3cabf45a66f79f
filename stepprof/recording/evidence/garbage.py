"""Record Python's garbage collections.

Code that makes many objects has thousands of short collections per second. Consecutive ones are
merged, so that a capture keeps a bounded number.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from stepprof.host.real_time import perf_counter_ns

SHORT_NS = 1_000_000
"""Collections below this are merged."""

RUN_NS = 100_000_000
"""A merged run of short collections lasts no longer."""

MOST = 10_000
"""Maximum number of entries of one capture."""


@dataclass(slots=True)
class Collection:
    """One garbage collection, or a run of short ones. Times by `perf_counter_ns`."""

    thread: int
    step: int | None
    role: str | None
    generation: int
    """The oldest one of a run."""
    start_ns: int
    end_ns: int
    busy_ns: int
    collected: int
    count: int = 1


class GarbageWatch:
    """Keeps the garbage collections of this process while it is on.

    Args:
        thread: returns the native id of the calling thread.
        place: returns the step and role of the window that is open.
    """

    def __init__(self, thread: Callable[[], int], place: Callable[[], tuple[int | None, str | None]]) -> None:
        self.found: list[Collection] = []
        self.dropped = 0
        self._thread = thread
        self._place = place
        self._began = 0
        self._callback = self.collected  # the list of callbacks must hold this very object

    def start(self) -> None:
        """Watch from now on."""
        gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Watch no more."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def collected(self, phase: str, info: dict[str, int]) -> None:
        """Note a collection. The interpreter calls it at the start and at the stop of each."""
        if phase == "start":
            self._began = perf_counter_ns()
            return
        began, self._began = self._began, 0
        if began:
            self._add(began, perf_counter_ns(), info["generation"], info["collected"])

    def _add(self, start: int, end: int, generation: int, collected: int) -> None:
        thread, busy = self._thread(), end - start
        last = self.found[-1] if self.found else None
        if (
            last is not None
            and busy < SHORT_NS
            and last.busy_ns < SHORT_NS * last.count
            and last.thread == thread
            and end - last.start_ns < RUN_NS
        ):
            last.end_ns = end
            last.busy_ns += busy
            last.generation = max(last.generation, generation)
            last.collected += collected
            last.count += 1
        elif len(self.found) < MOST:
            self.found.append(Collection(thread, *self._place(), generation, start, end, busy, collected))
        else:
            self.dropped += 1
