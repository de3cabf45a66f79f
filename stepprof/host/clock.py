"""Take wall-clock and monotonic readings together, which gives spans absolute times.

Spans use ``perf_counter_ns`` because it never jumps. Traces of other processes and hosts use the
wall clock. An anchor connects the two at one moment.

All processes of one boot share the kernel's clocks. So two anchors show whether two processes have
one wall clock: it may have been set between them, and a library such as libfaketime gives its
process a clock of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stepprof.host import real_time

TICKS_ERROR_NS = 100_000_000
"""The error of a comparison with ticks: the kernel counts in units of 10 ms, late on a busy machine."""
LARGEST_NS = 2**62
READING_NS = 10_000
"""Maximum difference of two readings of one clock, in addition to the errors of both."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """One reading of the wall clock, of the monotonic clock and of the kernel's ticks, in nanoseconds.

    ``error_ns`` bounds the time between the first two readings. ``ticks_ns`` is the time since the
    boot by `times(2)`: it is coarse, but neither a namespace nor a library shifts it.
    """

    unix_ns: int
    monotonic_ns: int
    error_ns: int = 0
    ticks_ns: int = 0

    @classmethod
    def take(cls, tries: int = 5) -> Anchor:
        """Take the tightest of several tries: the wall clock read between two monotonic readings.

        >>> anchor = Anchor.take()
        >>> anchor.to_unix_ns(anchor.monotonic_ns + 1_000) - anchor.unix_ns
        1000
        """
        best: tuple[int, int, int] | None = None
        for _ in range(tries):
            before = real_time.perf_counter_ns()
            wall = real_time.time_ns()
            after = real_time.perf_counter_ns()
            if best is None or after - before < best[2]:
                best = wall, (before + after) // 2, after - before
        if best is None:
            raise ValueError(f"tries = {tries}: at least one reading is needed")
        return cls(*best, round(os.times().elapsed * 1e9))

    def to_unix_ns(self, monotonic_ns: int) -> int:
        """Return the wall-clock time of a monotonic reading, according to this anchor."""
        return self.unix_ns + monotonic_ns - self.monotonic_ns

    def ahead_of(self, other: Anchor, *, of_process: bool = False) -> tuple[int, int] | None:
        """Return how far the wall clock of this anchor is ahead of the other's, and the error. Both
        anchors are of one boot. (0, 0): both clocks are the same. None: they differ, and it is unknown
        by how much.

        Args:
            other: the anchor to compare with.
            of_process: both are of one process, so that they share the monotonic clock.

        >>> early, late = Anchor(5_000, 1_000, 3), Anchor(9_000_000, 2_000, 4)
        >>> late.ahead_of(early)
        (8994000, 7)
        """
        error = self.error_ns + other.error_ns
        wall = self.unix_ns - other.unix_ns
        monotonic = self.monotonic_ns - other.monotonic_ns
        ticks = self.ticks_ns - other.ticks_ns
        if of_process or abs(monotonic - ticks) <= TICKS_ERROR_NS + error:
            ahead = wall - monotonic
            return (0, 0) if abs(ahead) <= error + READING_NS else (ahead, error)
        # another namespace of time, or a library that shifts both clocks
        return (0, 0) if abs(wall - ticks) <= TICKS_ERROR_NS + error else None

    def to_dict(self) -> dict[str, int]:
        """Return the anchor as files contain it."""
        return {
            "unix_ns": self.unix_ns,
            "monotonic_ns": self.monotonic_ns,
            "error_ns": self.error_ns,
            "ticks_ns": self.ticks_ns,
        }

    @classmethod
    def of(cls, stored: object) -> Anchor | None:
        """Return the anchor in a file; None: there is none, or it is incomplete.

        >>> Anchor.of(Anchor(1, 2, 3, 4).to_dict())
        Anchor(unix_ns=1, monotonic_ns=2, error_ns=3, ticks_ns=4)
        >>> Anchor.of({"unix_ns": 1}) is Anchor.of(None) is None
        True
        """
        if not isinstance(stored, Mapping):
            return None
        values = [
            value
            for key in ("unix_ns", "monotonic_ns", "error_ns", "ticks_ns")
            if isinstance(value := stored.get(key), int)
            and not isinstance(value, bool)
            and abs(value) < LARGEST_NS
        ]
        return cls(*values) if len(values) == 4 else None
