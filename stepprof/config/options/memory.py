"""Options of the memory backend."""

from __future__ import annotations

from dataclasses import dataclass

from stepprof.config.validators import checked, choice, settle, whole
from stepprof.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOptions:
    """What the memory backend records of CUDA's allocator.

    >>> MemoryOptions(context="none").max_entries
    100000
    """

    max_entries: int = checked(100_000, whole(1))
    """Number of the latest allocations and frees of a window to keep. It limits the host memory of the
    history, and the size of the artifact.
    """
    context: str = checked("alloc", choice("none", "state", "alloc", "all"))
    """Which stacks to take: "none", "state" (of memory allocated at the end of the window), "alloc"
    (of every allocation) or "all" (also of frees).
    """
    stacks: str = checked("python", choice("python", "all"))
    """Frames of a stack: "python", or "all" with those of C++, which take much longer to resolve."""
    on_oom: bool = False
    """Take a snapshot when CUDA runs out of memory, also outside a window, in the roles and ranks that this policy selects."""
    on_oom_limit: int = checked(2, whole(1))
    """Maximum number of these snapshots in the whole run of a process."""
    on_oom_entries: int = checked(0, whole(0))
    """Number of allocations and frees to keep outside of windows, so that a snapshot shows which
    code allocated what; 0: no history outside of windows.
    """

    def __post_init__(self) -> None:
        """Check every field. Refuse options of `on_oom` without it."""
        settle(self)
        if self.on_oom_entries and not self.on_oom:
            problem = "has no effect without on_oom = true; did you mean 0?"
            raise ConfigError.at("on_oom_entries", self.on_oom_entries, problem)
