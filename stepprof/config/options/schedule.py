"""The schedule of captures of a region inside a window."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepprof.config.validators import checked, settle, texts, whole
from stepprof.errors import ConfigError


def _one_name(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise ConfigError.at(key, value, 'expected the name of a region, such as "mini_batch"')
    return texts(value, key)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """The entries of a region inside a window to capture: skip, then ``repeat`` rounds of wait, warmup
    and active entries.

    >>> Schedule(region="mini_batch", active=2).repeat
    1
    """

    region: str = field(metadata={"check": _one_name})
    """The region whose entries are counted."""
    skip_first: int = checked(0, whole(0))
    """Entries to skip once, before the first round."""
    wait: int = checked(0, whole(0))
    """Entries to skip in each round."""
    warmup: int = checked(0, whole(0))
    """Entries with an armed profiler that records nothing."""
    active: int = checked(1, whole(1))
    """Entries to record."""
    repeat: int = checked(1, whole(1))
    """Number of rounds."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(self)
