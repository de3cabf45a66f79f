"""Identify the process that wrote a file, and check whether it is still alive.

A fragment is first written with status `lost`, so that it is correct even after SIGKILL. While its
writer lives, the correct status is "recording". A process id alone does not identify a process,
because the kernel reuses it. Together with the process's start time, the machine's boot and the
namespace of process ids, it is unique.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from stepprof.interrupts import ours

_POSIX = os.name == "posix"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def writer_identity(pid: int | None = None) -> dict[str, object]:
    """Return the identity of this process, or of another one of this host and container.

    Keys: host, pid, pid_start (clock ticks since boot), boot_id, pid_namespace; None if
    unavailable.

    >>> writer_identity()["pid"] == os.getpid()
    True
    """
    pid = os.getpid() if pid is None else pid
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "pid_start": process_start(pid),
        "boot_id": boot_id(),
        "pid_namespace": pid_namespace(),
    }


def is_alive(writer: Mapping[str, object]) -> bool | None:
    """Return whether the process of a `writer_identity()` is running.

    Return None if this cannot be checked from here (another host, another container).

    >>> is_alive(writer_identity())
    True
    """
    pid = writer.get("pid")
    if not isinstance(pid, int) or pid <= 0 or writer.get("host") != socket.gethostname():
        return None
    boot, here = writer.get("boot_id"), boot_id()
    if boot is not None and here is not None and boot != here:
        # the host was rebooted, or another machine has its name: either way the process is not one of ours
        return False
    if writer.get("pid_namespace") not in (None, pid_namespace()):
        return None
    if here is None:
        return _answers(pid)
    start = process_start(pid)
    if start is None:
        return False
    return writer.get("pid_start") in (None, start)


def process_start(pid: int) -> int | None:
    """Return the start of process `pid` in clock ticks since boot (proc(5), field 22 of stat).

    Return None if it has ended, or without /proc.
    """
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def parent_of(pid: int) -> int | None:
    """Return the parent of process `pid`; None if it has ended, or without /proc.

    >>> parent_of(os.getpid()) in (os.getppid(), None)
    True
    """
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def _stat(pid: int) -> list[str] | None:
    """Return the fields of a living process's stat from the state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except ours(OSError):
        return None
    # the second field, the name in parentheses, may contain spaces and parentheses
    fields = text.rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in "ZX" else fields


def boot_id() -> str | None:
    """Return the kernel's id of this boot of the machine."""
    try:
        return _BOOT_ID.read_text().strip()
    except ours(OSError):
        return None


def pid_namespace() -> str | None:
    """Return the namespace of process ids, such as `pid:[4026531836]`: that of the container."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except ours(OSError):
        return None


def _answers(pid: int) -> bool | None:
    """Return whether a process has this id, without /proc.

    On Windows `os.kill` would end the process, so it is not called there.
    """
    if not _POSIX:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except ours(OSError):  # EPERM: it exists and is another user's
        return True
    return True
