"""Read small files that must have been written by the job's own user: requests, and run claims.

Other users may be able to write to the places where a job looks for such a file. So the owner of
the open file is checked. Links, pipes and long files are refused.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from pathlib import Path

from stepprof.errors import ConfigError
from stepprof.host.plain_files import open_plain
from stepprof.interrupts import ignored, ours

MAX_BYTES = 65_536
"""Maximum size; such a file has some hundred bytes."""


def read_own(path: Path, uid: int | None) -> bytes:
    """Return the content of a small plain file that this user owns.

    Args:
        path: the file.
        uid: the user who must own it; None where the system has no users.

    Raises:
        ConfigError: another user's file, not a plain file, or too long.
        OSError: it cannot be read, or `path` is a link.
    """
    try:
        file = open_plain(path)
    except ours(OSError) as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise ConfigError(f"{path.name}: not a plain file") from error
        raise
    with file:
        status = os.fstat(file.fileno())
        if uid is not None and status.st_uid != uid:
            raise ConfigError(
                f"{path.name}: made by user {status.st_uid}; only user {uid}, the owner of the job, may make requests"
            )
        if status.st_size > MAX_BYTES:
            raise ConfigError(f"{path.name}: {status.st_size} bytes; at most {MAX_BYTES} are read")
        return file.read(MAX_BYTES)


def own_uid(folder: Path) -> int | None:
    """Return the owner of files that this process creates in a folder; None on systems without
    users.

    A network file system may assign all files to one user (root squash, a pod's volume), so this is
    not always the user of the process.
    """
    if not hasattr(os, "getuid"):
        return None
    path = folder / f".owner-{os.urandom(8).hex()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except ours(OSError):  # no file can be created there: assume this process's user
        return os.getuid()
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        with ignored(OSError):
            path.unlink()


def owner_for(path: Path) -> int | None:
    """Return the required owner of a file here: the process's user, or the owner that the file
    system assigns.

    Raises OSError.
    """
    if not hasattr(os, "geteuid"):
        return None
    user = os.geteuid()
    return user if path.lstat().st_uid == user else _owner_in(path.parent, user)


@functools.lru_cache(maxsize=16)
def _owner_in(folder: Path, _user: int) -> int | None:
    return own_uid(folder)


def foreign_folder(path: Path) -> str | None:
    """Return why a name cannot be used as a folder of this user; None if it can, or is free.

    A link of this user counts if its target is this user's folder too.
    """
    try:
        for status in (path.lstat(), path.stat()):
            owner = owner_for(path)
            if owner is not None and status.st_uid not in (owner, os.geteuid()):
                kind = "a link" if stat.S_ISLNK(status.st_mode) else "the folder"
                return f"{kind} belongs to user {status.st_uid}, and this job to user {owner}"
            if not stat.S_ISDIR(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                return "it is no folder"
    except FileNotFoundError:
        return "it is a link without a target" if path.is_symlink() else None
    except ours(OSError) as error:
        return error.strerror or str(error)
    return None


def is_foreign(path: Path) -> bool:
    """Return whether another user, or something that is not a plain file, occupies this name."""
    try:
        status = path.lstat()
        return not stat.S_ISREG(status.st_mode) or owner_for(path) not in (None, status.st_uid)
    except ours(OSError):
        return False
