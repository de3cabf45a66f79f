"""Wall and monotonic readings taken together, by which spans get absolute time.

Spans keep ``perf_counter_ns`` because it never jumps; traces of other processes and hosts know only the wall clock. An anchor
ties the two at one moment; the wall clock may be slewed later, so long-lived writers take a new one for each file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["Anchor"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """One reading of the wall clock and of the monotonic clock, in nanoseconds; ``error_ns`` bounds how far apart they were taken."""

    unix_ns: int
    monotonic_ns: int
    error_ns: int = 0

    @classmethod
    def take(cls, tries: int = 5) -> Anchor:
        """The tightest of some tries: the wall clock read between two monotonic readings.

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
        """The wall-clock time of a monotonic reading, by this anchor."""
        return self.unix_ns + monotonic_ns - self.monotonic_ns

    def to_dict(self) -> dict[str, int]:
        """The anchor as it stands in files."""
        return {"unix_ns": self.unix_ns, "monotonic_ns": self.monotonic_ns, "error_ns": self.error_ns}
