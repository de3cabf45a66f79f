"""Remove temporary files that killed processes left in the run directory.

A file is written under a hidden name, which names its process, and renamed when complete. The first
process of a run removes the hidden files of dead processes of its machine when it ends. Processes
of other machines cannot be checked, so their files stay.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from stepprof.host.atomic_files import is_left_over
from stepprof.run.layout import AFTER, REQUESTS, SPANS, STATUS, step_number


def remove_leftovers(run: Path, seconds: float) -> int:
    """Remove the temporary files of dead processes of this machine. Return their number.

    Args:
        run: the run directory.
        seconds: start no further folder after this.
    """
    deadline = time.monotonic() + seconds
    removed = 0
    for folder in _folders(run):
        if time.monotonic() > deadline:
            break
        for name in _hidden(folder):
            if is_left_over(name):
                with contextlib.suppress(OSError):  # it belongs to another user, or was removed meanwhile
                    (folder / name).unlink()
                    removed += 1
    return removed


def _folders(run: Path) -> Iterator[Path]:
    """Yield the folders of a run that files are written into, those of the latest steps first."""
    yield run
    for name in (STATUS, SPANS, REQUESTS, AFTER):
        yield run / name
    steps = [name for name in _names(run) if step_number(name) is not None]
    for step in sorted(steps, key=lambda name: step_number(name) or 0, reverse=True):
        yield from (run / step / name for name in _names(run / step))


def _names(folder: Path) -> list[str]:
    """Return the folders in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _hidden(folder: Path) -> list[str]:
    """Return the names of our own hidden files in a folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.name.startswith(".") and _is_ours(entry)]
    except OSError:
        return []


def _is_ours(entry: os.DirEntry[str]) -> bool:
    """Return whether a file belongs to our user: processes of other users may be invisible."""
    return os.name == "posix" and entry.stat(follow_symlinks=False).st_uid == os.getuid()
