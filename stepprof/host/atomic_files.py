"""Files that appear whole, and never on top of another.

A run directory is written side by side by many processes that share nothing but a file system, and some of them die at any moment. So everything is written under a
temporary name and then linked (`os.link` fails where the name is taken, so it is at once the test and the act) or, for a file of one's own, renamed over the older version of it.
What only this module knows: which file systems have no hard links, and what replaces them there.

Nothing is synced to the medium: a file survives the end of its process, however it ends, since the kernel has it; only a power cut or a crash of the machine may
lose the last seconds of it, and a wait for the disk on the training thread would cost every step for that.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import os
import re
from pathlib import Path

from stepprof.host.process_identity import boot_id, pid_namespace, process_start

__all__ = [
    "is_left_over",
    "place",
    "publish",
    "suffixed",
    "temporary",
    "write_atomically",
    "write_exclusively",
    "write_temporary",
]

# What file systems without hard links say: FAT and exFAT (EPERM), FUSE and object stores (ENOSYS, EOPNOTSUPP), some overlays (EXDEV), a directory at its limit of links (EMLINK).
_NO_LINKS = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.EXDEV,
        errno.EMLINK,
        errno.EINVAL,
    }
)
_TEMPORARY = re.compile(r"\.(?P<pid>\d+)-(?P<machine>[0-9a-f]{8})-(?P<start>[0-9a-f]+)-\d+\.tmp$")
# ".json", ".trace.json.gz", ".nsys-rep": letters only, so that "rank-0" or the "2" of "rank-0.2" are never taken for an extension
_EXTENSION = re.compile(r"(?:\.(?:nsys-rep|[A-Za-z]+))*$")
_numbers = itertools.count(1)


def temporary(final: Path) -> Path:
    """Return a hidden name beside `final` that no other process takes; it says which process that is, so that `is_left_over` can tell when it is gone."""
    return final.with_name(f".{final.name}.{_process(os.getpid())}-{next(_numbers)}.tmp")


def is_left_over(name: str) -> bool:
    """Return whether a file of this name is temporary, and the process of this machine that made it is gone. False where that cannot be told from here."""
    found = _TEMPORARY.search(name)
    if found is None or not name.startswith(".") or found["machine"] != _machine():
        return False
    return process_start(int(found["pid"])) != int(found["start"], 16)


@functools.lru_cache(maxsize=4)  # a forked child is another process
def _process(pid: int) -> str:
    start = process_start(pid)
    return f"{pid}" if start is None else f"{pid}-{_machine()}-{start:x}"


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    """What tells this boot of this machine, and the namespace in which its process ids count, from all others."""
    return hashlib.sha256(f"{boot_id()} {pid_namespace()}".encode()).hexdigest()[:8]


def write_temporary(final: Path, data: bytes, *, mode: int = 0o666) -> Path:
    """Write `data` beside `final` under a hidden name that is its own, and return that path; nothing is left behind where it fails. `mode` is what the umask leaves of it."""
    while True:
        tmp = temporary(final)
        try:
            descriptor = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:  # left by a process that died, or of another host with our process id
            continue
        break
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        _remove(tmp)
        raise
    return tmp


def write_atomically(path: Path, data: bytes) -> None:
    """Replace our own file `path`: a reader sees the whole old version or the whole new one, and so does everybody after a crash.

    Raises:
        OSError: it cannot be written; what `path` held before is untouched.
    """
    tmp = write_temporary(path, data)
    try:
        tmp.replace(path)
    except BaseException:
        _remove(tmp)
        raise


def write_exclusively(path: Path, data: bytes, *, mode: int = 0o666) -> bool:
    """Make `path` hold `data` unless it exists: of any number of processes exactly one gets True.

    Raises:
        OSError: it cannot be written.
    """
    tmp = write_temporary(path, data, mode=mode)
    try:
        placed = place(tmp, path)
    except BaseException:
        _remove(tmp)
        raise
    if not placed:
        _remove(tmp)
    return placed


def publish(tmp: Path, final: Path) -> Path:
    """Give the finished file `tmp` its name, or the nearest free one: `rank-0.trace.json.gz`, `rank-0.2.trace.json.gz`, …

    Both lie in one file system. Returns the path that it has now.

    Raises:
        OSError: the folder is gone or cannot be written; `tmp` is left.
    """
    number = 1
    while not place(tmp, suffixed(final, number)):
        number += 1
    return suffixed(final, number)


def suffixed(path: Path, number: int) -> Path:
    """`path` for the first, with `.2`, `.3`, … before its extension for the later ones."""
    if number == 1:
        return path
    extension = _EXTENSION.search(path.name)
    cut = extension.start() if extension else len(path.name)
    return path.with_name(f"{path.name[:cut]}.{number}{path.name[cut:]}")


def place(tmp: Path, final: Path) -> bool:
    """Rename `tmp` to `final` if `final` does not exist (True); else leave both as they are (False)."""
    try:
        os.link(tmp, final)
    except FileExistsError:
        # over NFS the answer to a link that succeeded may be lost, and the repeated request finds its own work
        if not _is_same(tmp, final):
            return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _place_without_links(tmp, final)
    _remove(tmp)
    return True


def _place_without_links(tmp: Path, final: Path) -> bool:
    """The same by a reservation of the name, which is made exclusively, and a rename. A process killed in between uses up the name, and nothing else."""
    reservation = final.with_name(f".{final.name}.taken")
    try:
        os.close(os.open(reservation, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        return False
    try:
        if os.path.lexists(final):
            return False
        tmp.rename(final)
        return True
    finally:
        _remove(reservation)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them has gone meanwhile: then it is not ours
        return False


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a hidden temporary file that cannot be removed does no harm
        path.unlink()
