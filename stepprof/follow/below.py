"""Open files and folders below a run, without following a link: a run is data, also that of another user."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from stepprof.host.own_files import is_foreign

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def unlinked(run: Path, path: Path) -> Path:
    """Return a path below a run. Raise PermissionError if a link is on the way: it may lead out of the run."""
    if path.parent.resolve() != run.resolve() / path.parent.relative_to(run):
        raise PermissionError(errno.EPERM, "a link is on the way, and links are not followed", str(path))
    return path


def own(run: Path, path: Path) -> Path:
    """Return a path below a run, of a file of ours or of none. Raise PermissionError if another user has made it,
    or if a link is on the way.
    """
    if is_foreign(unlinked(run, path)):
        raise PermissionError(errno.EPERM, "belongs to another user, or is no plain file", str(path))
    return path


@contextlib.contextmanager
def opened_folder(root: Path | int, parts: Sequence[str]) -> Iterator[int]:
    """Yield a descriptor of the folder `parts` below a folder, or below its descriptor.

    Raises:
        OSError: it is missing, or a link or another file is on the way.
    """
    here = os.dup(root) if isinstance(root, int) else os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def opened_files(root: Path, path: str) -> Iterator[tuple[str, io.BufferedReader]]:
    """Yield a file below `root`, or all plain files of a folder, each with its path. Leave out links.

    Raises:
        OSError: it is missing, or no plain file and no folder.
    """
    parts = PurePosixPath(path).parts
    with opened_folder(root, parts[:-1]) as above:
        if stat.S_ISDIR(os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode):
            for folder, _, names, here in os.fwalk(parts[-1], dir_fd=above):
                for name in sorted(names):
                    if stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                        with _opened(name, here) as file:
                            yield "/".join((*parts[:-1], folder, name)), file
        else:
            with _opened(parts[-1], above) as file:
                yield path, file


def _opened(name: str, folder: int) -> io.BufferedReader:
    try:
        file = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a link, and links are not followed", name) from None
        raise
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "not a plain file", name)
