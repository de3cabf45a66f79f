"""Which process wrote something, and whether it still lives.

A fragment is written ahead as `lost`, so that it tells the truth even after SIGKILL; while its writer lives, the truth is "recording". A process id alone does not say that, since
the kernel gives it out again: only together with the start of the process, the boot of the machine and the namespace of process ids does it name one process for ever.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

__all__ = ["is_alive", "process_start", "writer_identity"]

_POSIX = os.name == "posix"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def writer_identity(pid: int | None = None) -> dict[str, object]:
    """This process, or another one of this host and container: host, pid, pid_start (clock ticks since boot), boot_id, pid_namespace; None where the system does not tell.

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
    """Whether the process of a `writer_identity()` still runs; None where that cannot be told from here (another host, another container).

    >>> is_alive(writer_identity())
    True
    """
    pid = writer.get("pid")
    if not isinstance(pid, int) or pid <= 0 or writer.get("host") != socket.gethostname():
        return None
    boot, here = writer.get("boot_id"), boot_id()
    if boot is not None and here is not None and boot != here:
        # a host of the same name that was started anew, or another machine of that name: either way the process is not one of ours
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
    """When process `pid` was started, in clock ticks since the boot (proc(5), field 22 of stat); None if it has ended, or where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[
        2
    ].split()  # the second field, the name in brackets, may hold spaces and brackets
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return int(fields[19])


def boot_id() -> str | None:
    """The kernel's name for this boot of the machine."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None


def pid_namespace() -> str | None:
    """The namespace in which process ids count here, such as `pid:[4026531836]`: containers of one host have one each."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return None


def _answers(pid: int) -> bool | None:
    """Without /proc: whether some process has this id. On Windows `os.kill` would end the process, so that nothing is asked there."""
    if not _POSIX:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # EPERM: it exists and is another user's
        return True
    return True
