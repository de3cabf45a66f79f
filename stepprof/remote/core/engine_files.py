"""Open files of an engine that may run as another user: without following links or waiting, and only if they belong to that user.

A server names its own folder. A server of another user could name any folder, and leave links and pipes there.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from stepprof.host.own_files import own_uid
from stepprof.host.plain_files import data_bytes, open_plain
from stepprof.interrupts import ours
from stepprof.remote.base import EngineFailure

LINK = "current"
"""The symbolic link through which vLLM gets a folder for each window."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"
ROOT = 0


def listening(port: int, tables: tuple[Path, ...] = _TABLES) -> list[tuple[int, str]]:
    """Return the user and the inode of each socket of this host that listens on a port; none if the system does not list them."""
    found = []
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except ours(OSError):
            continue
        for fields in map(str.split, lines):
            if len(fields) > 9 and fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                found.append((int(fields[7]), fields[9]))
    return found


def user_of_server(port: int, *, tables: tuple[Path, ...] = _TABLES) -> int | None:
    """Return the user that listens on a port of this host; None if unknown or ambiguous."""
    users = {user for user, _ in listening(port, tables)}
    return users.pop() if len(users) == 1 else None


def writers(user: int | None) -> frozenset[int] | None:
    """Return the users whose files count as an engine's.

    Args:
        user: the user that the engine runs as; None: unknown, as on another host.

    Returns:
        None: the files of every user count.
    """
    if user is None or not hasattr(os, "geteuid"):
        return None
    return frozenset({user, os.geteuid(), ROOT}) if _is_trusted(user) else frozenset({user})


def check_named_folder(folder: Path, user: int | None) -> None:
    """Refuse the folder that a server of another user names, unless it belongs to that user or was prepared for an engine.

    Raises:
        EngineFailure: it must be named by the caller of `attach`.
    """
    if not hasattr(os, "geteuid") or _is_trusted(user):
        return
    base = folder.parent if folder.name == LINK else folder
    try:
        status, link = base.lstat(), base / LINK
        if stat.S_ISDIR(status.st_mode):
            if status.st_uid == user:
                return
            if status.st_uid == os.geteuid() and link.is_symlink() and link.lstat().st_uid == os.geteuid():
                return
    except ours(OSError):  # do not create folders at the request of such a server
        pass
    user_text = "a user that cannot be determined" if user is None else f"user {user}"
    raise EngineFailure(
        f"the server runs as {user_text}, and names a folder for its traces that is not that user's: name the folder yourself with attach(…, trace_dir=…)",
        "unconfigured",
    )


def is_engine_file(path: Path, users: frozenset[int] | None) -> bool:
    """Return whether this is a plain file of one of these users, and not a link."""
    try:
        status = path.lstat()
    except ours(OSError):
        return False
    return stat.S_ISREG(status.st_mode) and _is_of(status.st_uid, users, path.parent)


def open_engine_file(path: Path, users: frozenset[int] | None = None) -> IO[bytes]:
    """Open a file that an engine has written, as one of the users that `writers` returns.

    Raises:
        OSError: it cannot be read, is a link or no plain file, has a hole, or belongs to another user.
    """
    file = open_plain(path)
    status = os.fstat(file.fileno())
    if not _is_of(status.st_uid, users, path.parent):
        error = OSError(errno.EPERM, "not a file of the engine's user", str(path))
    elif data_bytes(file) < status.st_size:
        error = OSError(errno.EINVAL, "has a hole, which no engine writes", str(path))
    else:
        return file
    file.close()
    raise error


def _is_of(owner: int, users: frozenset[int] | None, folder: Path) -> bool:
    if users is None or owner in users:
        return True
    # a file system that gives every file to one user
    return hasattr(os, "geteuid") and os.geteuid() in users and owner == own_uid(folder)


def _is_trusted(user: int | None) -> bool:
    """Return whether this user can read the driver's files anyway."""
    return user in (os.geteuid(), ROOT)
