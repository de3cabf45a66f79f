"""Create files atomically, and never overwrite another process's file.

Many processes write one run directory. They share only a file system, and any of them may die at
any moment. So each file is written under a temporary name and then linked: `os.link` fails if the
name is taken, so it tests and creates in one step. A process replaces its own file by a rename.

Some file systems have no hard links; this module knows which, and the replacement. Nothing is
synced to disk. A file survives the death of its process, because the kernel holds the data. Only a
power cut or a machine crash may lose the last seconds. Waiting for the disk on the training thread
would cost every step.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
from pathlib import Path

from stepprof.host.process_identity import boot_id, pid_namespace, process_start
from stepprof.interrupts import ours

# Errors of file systems without hard links: FAT and exFAT (EPERM), FUSE and object stores (ENOSYS, EOPNOTSUPP), some overlays (EXDEV), a directory at its limit of links (EMLINK).
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
# ".json", ".trace.json.gz", ".nsys-rep": letters only, so that "rank-0" or the "2" of "rank-0.2" are not extensions
_EXTENSION = re.compile(r"(?:\.(?:nsys-rep|[A-Za-z]+))*$")
_numbers = itertools.count(1)


def temporary(final: Path) -> Path:
    """Return a hidden name next to `final` that no other process uses.

    The name identifies the process, so that `is_left_over` can detect when it has ended.
    """
    # joined as strings: each window of a recorded step waits for it
    return Path(f"{final.parent}/.{final.name}.{_process(os.getpid())}-{next(_numbers)}.tmp")


def is_left_over(name: str) -> bool:
    """Return whether this name is temporary and its process on this machine has ended.

    Return False if this cannot be determined from here.
    """
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
    """Return what identifies this boot of this machine, and the namespace of its process ids."""
    import hashlib  # with OpenSSL: 3.4 MB that most commands do not need

    return hashlib.sha256(f"{boot_id()} {pid_namespace()}".encode()).hexdigest()[:8]


def write_temporary(final: Path, data: bytes, *, mode: int = 0o666) -> Path:
    """Write `data` next to `final` under a hidden name of this process, and return that path. If it
    fails, nothing is left. The umask applies to `mode`.
    """
    while True:
        tmp = temporary(final)
        try:
            descriptor = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:  # left by a dead process, or one of another host with the same id
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
    """Replace our own file `path`. Readers see the complete old or the complete new version, even
    after a crash.

    Raises:
        OSError: it cannot be written; what `path` held before is untouched.
    """
    tmp = write_temporary(path, data)
    try:
        os.replace(tmp, path)  # noqa: PTH105 - as in `temporary`
    except BaseException:
        _remove(tmp)
        raise


def write_exclusively(path: Path, data: bytes, *, mode: int = 0o666) -> bool:
    """Create `path` with `data` unless it exists: exactly one of any number of processes gets True.

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
    """Rename the finished file `tmp` to `final`, or to the next free name, and return that path.

    The names are `rank-0.trace.json.gz`, `rank-0.2.trace.json.gz`, … Both paths are on one file
    system.

    Raises:
        OSError: the folder is gone or cannot be written; `tmp` is left.
    """
    number = 1
    while not place(tmp, suffixed(final, number)):
        number += 1
    return suffixed(final, number)


def suffixed(path: Path, number: int) -> Path:
    """Return `path` for number 1, else with `.2`, `.3`, … before its extension."""
    if number == 1:
        return path
    extension = _EXTENSION.search(path.name)
    cut = extension.start() if extension else len(path.name)
    return path.with_name(f"{path.name[:cut]}.{number}{path.name[cut:]}")


def last_number(path: Path) -> int:
    """Return how many of the names that `suffixed` gives are taken, without a gap."""
    return next(number for number in itertools.count() if not os.path.lexists(suffixed(path, number + 1)))


def place(tmp: Path, final: Path) -> bool:
    """Rename `tmp` to `final` and return True; return False and change nothing if `final` exists."""
    try:
        os.link(tmp, final)
    except FileExistsError:
        # over NFS, the reply to a successful link may be lost; the repeated request then finds its own result
        if not _is_same(tmp, final):
            return False
    except ours(OSError) as error:
        if error.errno not in _NO_LINKS:
            raise
        return _place_without_links(tmp, final)
    _remove(tmp)
    return True


def _place_without_links(tmp: Path, final: Path) -> bool:
    """Do the same as `place` on file systems without links: reserve the name exclusively, then rename.

    A process that is killed in between only uses up the name.
    """
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
    except ours(OSError):  # the file has disappeared meanwhile: it is not ours
        return False


def _remove(path: Path) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - as above
    except ours(OSError):  # a hidden temporary file that cannot be removed does no harm
        pass
