"""Options of the watch of a process."""

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
    """What is unusual, and how often it may be recorded.

    >>> WatchOptions(enabled=True, factor=3).max_captures
    3
    """

    enabled: bool = False
    """Watch steps, regions and memory, by the spans."""
    factor: float = checked(2.0, more_than(1, 2))
    """A slow step or region takes at least this many times the median."""
    spread: float = checked(8.0, more_than(0, 8))
    """It is also at least this many deviations of the history above the median."""
    min_seconds: float = checked(0.5, seconds)
    """It also takes at least this many seconds more than the median."""
    window: int = checked(100, whole(2))
    """History length in steps, and the number of steps without a further alert after one."""
    min_steps: int = checked(20, whole(2))
    """Minimum length of a history for an alert, in steps."""
    skip_first: int = checked(5, whole(0))
    """Steps to ignore at the beginning: compilation, caches, autotuning."""
    roles: Sequence[str] | None = checked(None, _roles)
    """The watched roles; None: all, and the whole step."""
    regions: Sequence[str] | None = checked(None, _regions)
    """The watched regions; None: all; []: none, only the windows."""
    memory_growth: int | str = checked("4GiB", limit(byte_size))
    """Growth of never-freed memory that raises an alert, for the host and for a device; "none": no
    alert.
    """
    lag_seconds: float | str = checked(60.0, limit(seconds))
    """How far a rank may be behind the median of all, in steps times the duration of a step; "none":
    ranks are not compared.
    """
    max_captures: int = checked(3, whole(0))
    """Maximum number of captures by the watch in the whole run, of all ranks; 0: only alerts."""
    max_bytes: int | str = checked("2GiB", limit(byte_size))
    """Maximum bytes of these captures in the whole run; "none": no limit."""

    def __post_init__(self) -> None:
        """Check every field, and that a history can reach its minimum length."""
        settle(self)
        if isinstance(self.lag_seconds, float) and self.lag_seconds < LEAST_LAG_SECONDS:
            problem = f"published steps are some seconds old; did you mean {LEAST_LAG_SECONDS:g}?"
            raise ConfigError.at("lag_seconds", self.lag_seconds, problem)
        if self.min_steps > self.window:
            problem = f"longer than the history, whose window is {self.window}; did you mean {self.window}?"
            raise ConfigError.at("min_steps", self.min_steps, problem)
