"""How much of a source is read at most."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a file is read at most, so that no file can take the machine: what is beyond is left out, and told."""

    inflated_bytes: int = 32 << 30
    """Of text, uncompressed."""
    event_bytes: int = 64 << 20
    """Of one event: a larger one is passed over."""
    memory_bytes: int = 4 << 30
    """Of memory that a source takes, from its first event until it is drawn or summed up: what comes later is left out."""
