"""Limit how much of a source is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading a file, so that no file can use up the machine. Data beyond them is left
    out with a finding.
    """

    inflated_bytes: int = 32 << 30
    """Of text, uncompressed."""
    event_bytes: int = 64 << 20
    """Bytes of one event. A larger one is skipped."""
    memory_bytes: int = 4 << 30
    """Bytes of memory of a source, from its first event until it is drawn or summed up. Later
    events are left out.
    """
