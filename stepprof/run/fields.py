"""Check the fields of fragments and of `run.json`: their types and their possible ranges.

A number beyond its range is damage or an attack: a reader that counts up to a `world_size` of
10**18 never ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from stepprof.instrument.scope import LARGEST_STEP

LARGEST_NS = 1 << 62
LARGEST_OFFSET_NS = 1 << 61
"""73 years."""
MOST_RANKS = 1 << 20
LONGEST_TEXT = 1 << 16
LONGEST_NAME = 255

_Check = Callable[[Any], "str | None"]
"""Returns the problem of a value, to follow it in a message; None: there is none."""


def wrong(key: str, value: object) -> str | None:
    """Return the problem of a field's value; None: there is none, or the field is unknown here.

    >>> wrong("world_size", 10**18), wrong("start_seconds", float("inf")), wrong("world_size", 8)
    ('is not between 0 and 1048576', 'is not a number', None)
    """
    check = _CHECKS.get(key)
    return None if check is None or value is None else check(value)


def cut(value: object, most: int = 120) -> str:
    """Return a value as a message shows it."""
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def is_rank(value: object) -> bool:
    """Return whether a value is a global rank, or the name of a process without one."""
    if type(value) is int:
        return 0 <= value < MOST_RANKS
    return type(value) is str and 0 < len(value) <= LONGEST_NAME


def is_step(value: object) -> bool:
    """Return whether a value is a step number."""
    return type(value) is int and 0 <= value <= LARGEST_STEP


def path_problem(path: object) -> str | None:
    """Return why a string is no path of a file below a step's folder; None: it is one."""
    if not isinstance(path, str):
        return "without a path"
    parts = PurePosixPath(path).parts
    if not parts or path[0] == "/" or ".." in parts or "\\" in path:
        return "outside of the step"
    if "\0" in path or len(path) > 4096 or max(map(len, parts)) > LONGEST_NAME:
        return "that no file can have"
    return None


def _integer(low: int, high: int) -> _Check:
    def check(value: object) -> str | None:
        if type(value) is not int:
            return "is not a number"
        return None if low <= value <= high else f"is not between {low} and {high}"

    return check


def _number(most: float) -> _Check:
    def check(value: object) -> str | None:
        if type(value) is not int and (type(value) is not float or not math.isfinite(value)):
            return "is not a number"
        return None if abs(value) <= most else f"is not between {-most:g} and {most:g}"

    return check


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return "is not a string"
    return None if len(value) <= LONGEST_TEXT else "is too long"


def _scalar(value: object) -> str | None:
    is_scalar = isinstance(value, str | int | float) and not _text(str(value))
    return None if is_scalar else "is not a number or string"


def _switch(value: object) -> str | None:
    return None if isinstance(value, bool) else "is not a boolean"


_COUNT, _TIME, _SECONDS = _integer(0, (1 << 31) - 1), _integer(0, LARGEST_NS), _number(1e12)
_CHECKS: Mapping[str, _Check] = {
    **dict.fromkeys(("occurrence", "visit", "replica", "pid", "files", "not_uploaded"), _COUNT),
    "pending": _switch,
    "exit_status": _integer(-(1 << 31), (1 << 31) - 1),
    "world_size": _integer(0, MOST_RANKS),
    **dict.fromkeys(
        ("start_unix_ns", "end_unix_ns", "arm_unix_ns", "unix_ns", "created_unix_ns"),
        _TIME,
    ),
    **dict.fromkeys(("bytes", "events"), _TIME),
    **dict.fromkeys(("arm_seconds", "wait_seconds", "cpu_seconds", "thread_cpu_seconds"), _SECONDS),
    **dict.fromkeys(("start_seconds", "stop_seconds", "stall_seconds", "export_seconds"), _SECONDS),
    **dict.fromkeys(("overrun_seconds", "write_seconds", "seconds"), _SECONDS),
    "offset_ns": _integer(-LARGEST_OFFSET_NS, LARGEST_OFFSET_NS),
    "error_ns": _integer(0, LARGEST_OFFSET_NS),
    **dict.fromkeys(("kind", "name", "reason_code", "host", "boot_id", "pid_namespace", "health"), _text),
    **dict.fromkeys(("error", "export_note", "body_error", "capped_by", "backend", "method"), _text),
    **dict.fromkeys(("region", "url"), _text),
    "thread": _scalar,
    "version": _scalar,
}
