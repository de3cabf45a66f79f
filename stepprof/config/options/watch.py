"""Options of the watch that a process keeps on itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.config.validators import (
    byte_size,
    flag,
    limit,
    more_than,
    role_name,
    seconds,
    settle,
    texts,
    whole,
)
from stepprof.errors import ConfigError

LEAST_LAG_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """How a process watches itself: what counts as unusual, and how often that may be recorded.

    >>> WatchOptions(enabled=True, factor=3).max_captures
    3
    """

    enabled: bool = False
    """Watch steps, regions and memory, by the spans."""
    factor: float = 2.0
    """Slow is what takes at least so many times the median."""
    spread: float = 8.0
    """And lies at least so many deviations above it, as the history varies by itself."""
    min_seconds: float = 0.5
    """And takes at least so many seconds more than the median."""
    window: int = 100
    """Over how many of the last steps the history goes; for as many nothing more is told after something was."""
    min_steps: int = 20
    """How many steps the history must have before anything is unusual."""
    skip_first: int = 5
    """How many steps pass at first without a trace in it: compilation, caches, autotuning."""
    roles: Sequence[str] | None = None
    """Which roles are watched; None: all, and the whole step."""
    regions: Sequence[str] | None = None
    """Which regions are watched; None: all; []: none, only the windows."""
    memory_growth: int | str = "4GiB"
    """By how much the memory that never comes back may grow, on the host and on the device each; "none": it is not watched."""
    lag_seconds: float | str = 60.0
    """How far a rank may be behind the median of all, in steps times what a step takes; "none": nobody looks."""
    max_captures: int = 3
    """How many captures watching may make in the whole run, all ranks together; 0: it only tells."""
    max_bytes: int | str = "2GiB"
    """How many bytes these captures may write in the whole run; "none" for no limit."""

    def __post_init__(self) -> None:
        """Check every field, and that a history can become as long as it must be."""
        settle(
            self,
            {
                "enabled": flag,
                "factor": more_than(1, 2),
                "spread": more_than(0, 8),
                "min_seconds": seconds,
                **dict.fromkeys(("window", "min_steps"), whole(2)),
                **dict.fromkeys(("skip_first", "max_captures"), whole(0)),
                "roles": _roles,
                "regions": lambda value, key: () if value in ((), []) else texts(value, key),
                **dict.fromkeys(("memory_growth", "max_bytes"), limit(byte_size)),
                "lag_seconds": limit(seconds),
            },
        )
        if isinstance(self.lag_seconds, float) and self.lag_seconds < LEAST_LAG_SECONDS:
            problem = f"what ranks publish is some seconds old; the nearest is {LEAST_LAG_SECONDS:g}"
            raise ConfigError.at("lag_seconds", self.lag_seconds, problem)
        if self.min_steps > self.window:
            problem = f"longer than the history, whose window is {self.window}; the nearest is {self.window}"
            raise ConfigError.at("min_steps", self.min_steps, problem)


def _roles(value: object, key: str) -> tuple[str, ...]:
    return tuple(role_name(role, key) for role in texts(value, key))
