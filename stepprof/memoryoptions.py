"""The table of options of the memory backend."""

from __future__ import annotations

from dataclasses import dataclass

from stepprof.checks import flag, settle, whole

__all__ = ["MemoryOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOptions:
    """What the memory backend records of the device allocator."""

    max_entries: int = 100_000
    """How many allocations and frees are kept, the latest ones; it bounds the host memory that the history takes."""
    with_stack: bool = False
    """The Python stack of each allocation."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(self, {"max_entries": whole(1), "with_stack": flag})
