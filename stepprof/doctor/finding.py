"""What the doctor reports: one finding for each thing that it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `remedy` is empty if nothing has to be done. `applies` is False if
    nothing is wrong, but the checked feature cannot be used here.
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
