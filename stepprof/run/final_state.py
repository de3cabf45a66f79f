"""Whether an entry of a manifest has said its last word.

`lost` is written ahead, while something is recorded or exported, and is the truth if the process dies meanwhile. It is the last word where the process lives and has found out: that a report never
came, that an engine died. What only this module knows: how the two are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["AWAITED", "EXPORT_FAILED", "is_awaited"]

EXPORT_FAILED = "export: "
"""How the reason begins where an export has ended without anything."""

AWAITED = "the process ended before the engine's report had come"
"""What stands in an engine's entry whose stop was answered, as long as something is still to come."""


def is_awaited(entry: Mapping[str, object]) -> bool:
    """Whether a window's or an engine's entry will be told of again, if whoever writes it lives.

    >>> is_awaited({"status": "lost", "error": "the process ended before the capture was exported"})
    True
    >>> is_awaited({"status": "lost", "error": "export: nsys wrote no report"})
    False
    """
    error = str(entry.get("error"))
    if entry.get("status") != "lost" or entry.get("health") == "dead":
        return False
    if entry.get("stop_seconds") is not None:  # an engine's, and its stop was answered
        return error == AWAITED
    return not error.startswith(EXPORT_FAILED)
