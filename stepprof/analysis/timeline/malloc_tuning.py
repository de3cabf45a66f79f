"""Keep freed memory in processes that read traces: the next block of a file needs it again.

Only this module knows that glibc returns free memory at the end of its heap to the system at once,
and requests it again for the next block. The system clears every page each time, which takes a
sixth of a merge. Elsewhere (macOS, Windows, musl) nothing is changed.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 32 << 20
"""Bytes at the end of the heap that stay allocated when they are free. Larger blocks are still
returned at once.
"""
_GROWN_BY = 4 << 20


def keep_freed_memory() -> None:
    """Configure glibc's allocator. Call it only in stepprof's own processes: a command, or a worker
    of one.
    """
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
