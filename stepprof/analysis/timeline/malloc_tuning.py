"""How a process that reads traces keeps its memory: what one block of a file needed, the next one needs again.

What only this module knows: glibc gives memory at the end of its heap back to the system as soon as it is free, and asks for it again for the next block; the system clears every page each time, which
takes a sixth of a merge. Elsewhere (macOS, Windows, musl) nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 32 << 20
"""Bytes at the end of the heap that stay though they are free; and what is larger than that is still given back at once."""
_GROWN_BY = 4 << 20


def keep_freed_memory() -> None:
    """Tell glibc's allocator; for a process that is ours alone: a command, or a worker of one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in (
            (_MMAP_THRESHOLD, _KEPT),
            (_TRIM_THRESHOLD, _KEPT),
            (_TOP_PAD, _GROWN_BY),
        ):
            mallopt(parameter, value)
