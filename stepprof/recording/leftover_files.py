"""Remove temporary files that killed processes left in the run directory.

A file is written under a hidden name, which names its process, and renamed when complete. The first
process of a run removes the hidden files of dead processes of its machine when it ends. Processes
of other machines cannot be checked, so their files stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stepprof.host import real_time
from stepprof.host.atomic_files import is_left_over
from stepprof.interrupts import ignored, ours
from stepprof.run.layout import AFTER, REQUESTS, SPANS, step_number
from stepprof.run.names import STATUS


def remove_leftovers(run: Path, seconds: float) -> int:
    """Remove the temporary files of dead processes of this machine. Return their number.

    Args:
        run: the run directory.
        seconds: start no further folder after this.
    """
    deadline = real_time.monotonic() + seconds
    removed = 0
    for folder in _folders(run):
        if real_time.monotonic() > deadline:
            break
        for name in _names(folder, _is_our_hidden_file):
            if is_left_over(name):
                with ignored(OSError):  # it belongs to another user, or was removed meanwhile
                    (folder / name).unlink()
                    removed += 1
    return removed


def _folders(run: Path) -> Iterator[Path]:
    """Yield the folders of a run that files are written into, those of the latest steps first."""
    yield run
    for name in (STATUS, SPANS, REQUESTS, AFTER):
        yield run / name
    steps = [name for name in _names(run, _is_folder) if step_number(name) is not None]
    for step in sorted(steps, key=lambda name: step_number(name) or 0, reverse=True):
        yield from (run / step / name for name in _names(run / step, _is_folder))


def _names(folder: Path, is_wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if is_wanted(entry)]
    except ours(OSError):
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_our_hidden_file(entry: os.DirEntry[str]) -> bool:
    """Return whether a file is hidden and our user's: processes of other users may be invisible."""
    if os.name != "posix" or not entry.name.startswith("."):
        return False
    return entry.stat(follow_symlinks=False).st_uid == os.getuid()
