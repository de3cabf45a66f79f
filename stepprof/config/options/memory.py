"""The table of options of the memory backend."""

from __future__ import annotations

from dataclasses import dataclass

from stepprof.config.validators import checked, choice, settle, whole
from stepprof.errors import ConfigError

__all__ = ["MemoryOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOptions:
    """What the memory backend records of CUDA's allocator.

    >>> MemoryOptions(context="none").max_entries
    100000
    """

    max_entries: int = checked(100_000, whole(1))
    """How many allocations and frees of a window are kept, the latest ones; it bounds the host memory that the history takes, and the size of the artifact."""
    context: str = checked("alloc", choice("none", "state", "alloc", "all"))
    """Whose stacks are taken: "none", "state" (of what is allocated when the window ends), "alloc" (of every allocation) or "all" (of frees, too)."""
    stacks: str = checked("python", choice("python", "all"))
    """Which frames a stack has: "python", or "all" with those of C++, which take much longer to be put into words."""
    on_oom: bool = False
    """Take a snapshot when CUDA runs out of memory, also outside a window, in the roles and ranks that this policy selects."""
    on_oom_limit: int = checked(2, whole(1))
    """How many such snapshots a process takes in its whole run."""
    on_oom_entries: int = checked(0, whole(0))
    """How many allocations and frees are kept outside windows, so that such a snapshot tells who allocated what; 0: no history runs outside a window."""

    def __post_init__(self) -> None:
        """Check every field, and that what belongs to `on_oom` is not asked for without it."""
        settle(self)
        if self.on_oom_entries and not self.on_oom:
            problem = "has no effect without on_oom = true; did you mean 0?"
            raise ConfigError.at("on_oom_entries", self.on_oom_entries, problem)
