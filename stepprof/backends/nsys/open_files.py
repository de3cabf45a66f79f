"""Whether nsys is still at a report: it may pause for longer than a size can be watched, so the kernel is asked who has the file open.

That can be told of processes of this host and user alone; elsewhere the size has to do.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

__all__ = ["is_being_written"]

_NAMES = re.compile(r"nsys|nsight|qdstrm|quadd", re.IGNORECASE)
"""What nsys's own processes are called: `nsys`, `nsys-launcher`, `QdstrmImporter`."""


def is_being_written(path: Path) -> bool:
    """Whether a process of nsys's has the file open."""
    wanted = os.path.realpath(path)
    return any(wanted in _open_files(process) for process in _processes())


def _processes() -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if _NAMES.search((process / "comm").read_text()):
                found.append(process)
    return found


def _open_files(process: Path) -> list[str]:
    found = []
    with contextlib.suppress(OSError):  # another user's, or gone
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(link.readlink()))
    return found
