"""What the doctor reports: one finding for each thing that it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Finding", "Level", "read"]

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` is empty where nothing is to be done.

    `applies` is False where nothing is wrong, and what was looked at is not there to be used.
    """

    name: str
    level: Level
    detail: str
    remedy: str = ""
    applies: bool = True


def read(path: str) -> str:
    """Return the text of a file of the system, empty if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
