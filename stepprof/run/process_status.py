"""The status file of one process: the fields that it writes and that readers may rely on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

_Tables = dict[str, dict[str, "str | None"]]


def _read_by(check: Callable[[object], bool]) -> Any:
    """Return a field that is None if its value fails a check."""
    return field(default=None, metadata={"read": lambda value: value if check(value) else None})


def _tables(*keys: str) -> dict[str, Any]:
    """Return the metadata of a field with mappings by name, each with these strings."""

    def read(value: object) -> _Tables:
        tables = value if isinstance(value, Mapping) else {}
        return {
            str(name): {key: each.get(key) if _text(each.get(key)) else None for key in keys}
            for name, each in tables.items()
            if isinstance(each, Mapping)
        }

    return {"read": read}


def _text(value: object) -> bool:
    return isinstance(value, str)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _seconds(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value < 1e12
    )


def _rank(value: object) -> bool:
    return _count(value) or (isinstance(value, str) and bool(value))


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_count, value))


@dataclass(eq=False, kw_only=True)
class ProcessStatus:
    """The status that one process publishes while it runs. An unknown or damaged field is None.

    >>> ProcessStatus.from_dict({"rank": 3, "pid": "x"}).to_dict()["pid"] is None
    True
    """

    run_id: str | None = _read_by(_text)
    rank: int | str | None = _read_by(_rank)
    world_size: int | None = _read_by(_count)
    host: str | None = _read_by(_text)
    pid: int | None = _read_by(_count)
    writer: Mapping[str, Any] | None = _read_by(lambda value: isinstance(value, Mapping))
    started_unix_ns: int | None = _read_by(_count)
    published_unix_ns: int | None = _read_by(_count)
    beat_seconds: float | None = _read_by(_seconds)
    ended: bool | None = _read_by(lambda value: isinstance(value, bool))
    failed: bool | None = _read_by(lambda value: isinstance(value, bool))
    state: str | None = _read_by(_text)
    state_since_unix_ns: int | None = _read_by(_count)
    recording_step: int | None = _read_by(_count)
    recording_role: str | None = _read_by(_text)
    backend: str | None = _read_by(_text)
    health: str | None = _read_by(_text)
    engines: _Tables = field(
        default_factory=dict, metadata=_tables("kind", "name", "host", "state", "health", "roles")
    )
    last_error: str | None = _read_by(_text)
    pending_exports: Sequence[str] | None = _read_by(_texts)
    recorded_steps: Sequence[int] | None = _read_by(_counts)
    recorded_bytes: int | None = _read_by(_count)
    resident_bytes: int | None = _read_by(_count)
    device_bytes: int | None = _read_by(_count)
    roles: Sequence[str] | None = _read_by(_texts)
    requests: _Tables = field(
        default_factory=dict, metadata=_tables("outcome", "reason", "missed", "steps", "role")
    )
    step: int | None = _read_by(_count)
    step_since_unix_ns: int | None = _read_by(_count)
    step_seconds: float | None = _read_by(_seconds)
    pace_seconds: float | None = _read_by(_seconds)
    stride: int | None = _read_by(lambda value: _count(value) and value != 0)
    role: str | None = _read_by(_text)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {**vars(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProcessStatus:
        """Return the status in a file; a value of another type counts as missing."""
        return cls(**{each.name: each.metadata["read"](data.get(each.name)) for each in fields(cls)})
