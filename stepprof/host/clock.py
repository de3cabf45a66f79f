"""Take wall-clock and monotonic readings together, which gives spans absolute times.

Spans use ``perf_counter_ns`` because it never jumps. Traces of other processes and hosts use the
wall clock. An anchor connects the two at one moment. The wall clock may be adjusted later, so
long-lived writers take a new anchor for each file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Anchor"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One reading of the wall clock and of the monotonic clock, in nanoseconds.

    ``error_ns`` bounds the time between the two readings.
    """

    unix_ns: int
    monotonic_ns: int
    error_ns: int = 0

    @classmethod
    def take(cls, tries: int = 5) -> Anchor:
        """Take the tightest of several tries: the wall clock read between two monotonic readings.

        >>> anchor = Anchor.take()
        >>> anchor.to_unix_ns(anchor.monotonic_ns + 1_000) - anchor.unix_ns
        1000
        """
        best: Anchor | None = None
        for _ in range(tries):
            before = time.perf_counter_ns()
            wall = time.time_ns()
            after = time.perf_counter_ns()
            if best is None or after - before < best.error_ns:
                best = cls(unix_ns=wall, monotonic_ns=(before + after) // 2, error_ns=after - before)
        if best is None:
            raise ValueError(f"tries = {tries}: at least one reading is needed")
        return best

    def to_unix_ns(self, monotonic_ns: int) -> int:
        """Return the wall-clock time of a monotonic reading, according to this anchor."""
        return self.unix_ns + monotonic_ns - self.monotonic_ns

    def to_dict(self) -> dict[str, int]:
        """Return the anchor as files contain it."""
        return {"unix_ns": self.unix_ns, "monotonic_ns": self.monotonic_ns, "error_ns": self.error_ns}
