"""The table of options of the nsys backend."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NsysOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NsysOptions:
    """What the nsys backend can be told: nothing yet; the command line that launched nsys says what it records."""
