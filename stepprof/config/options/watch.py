"""Options of the watch that a process keeps on itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.config.validators import (
    byte_size,
    checked,
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


def _regions(value: object, key: str) -> tuple[str, ...]:
    return () if value in ((), []) else texts(value, key)


def _roles(value: object, key: str) -> tuple[str, ...]:
    return tuple(role_name(role, key) for role in texts(value, key))


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchOptions:
    """How a process watches itself: what counts as unusual, and how often that may be recorded.

    >>> WatchOptions(enabled=True, factor=3).max_captures
    3
    """

    enabled: bool = False
    """Watch steps, regions and memory, by the spans."""
    factor: float = checked(2.0, more_than(1, 2))
    """Slow is what takes at least so many times the median."""
    spread: float = checked(8.0, more_than(0, 8))
    """And lies at least so many deviations above it, as the history varies by itself."""
    min_seconds: float = checked(0.5, seconds)
    """And takes at least so many seconds more than the median."""
    window: int = checked(100, whole(2))
    """History length in steps, and the number of steps without a further alert after one."""
    min_steps: int = checked(20, whole(2))
    """How many steps the history must have before anything is unusual."""
    skip_first: int = checked(5, whole(0))
    """How many steps pass at first without a trace in it: compilation, caches, autotuning."""
    roles: Sequence[str] | None = checked(None, _roles)
    """Which roles are watched; None: all, and the whole step."""
    regions: Sequence[str] | None = checked(None, _regions)
    """Which regions are watched; None: all; []: none, only the windows."""
    memory_growth: int | str = checked("4GiB", limit(byte_size))
    """By how much the memory that never comes back may grow, on the host and on the device each; "none": it is not watched."""
    lag_seconds: float | str = checked(60.0, limit(seconds))
    """How far a rank may be behind the median of all, in steps times what a step takes; "none": ranks are not compared."""
    max_captures: int = checked(3, whole(0))
    """How many captures watching may make in the whole run, all ranks together; 0: it only tells."""
    max_bytes: int | str = checked("2GiB", limit(byte_size))
    """How many bytes these captures may write in the whole run; "none" for no limit."""

    def __post_init__(self) -> None:
        """Check every field, and that a history can become as long as it must be."""
        settle(self)
        if isinstance(self.lag_seconds, float) and self.lag_seconds < LEAST_LAG_SECONDS:
            problem = f"what ranks publish is some seconds old; the nearest is {LEAST_LAG_SECONDS:g}"
            raise ConfigError.at("lag_seconds", self.lag_seconds, problem)
        if self.min_steps > self.window:
            problem = f"longer than the history, whose window is {self.window}; the nearest is {self.window}"
            raise ConfigError.at("min_steps", self.min_steps, problem)
