"""Read how much more memory this process can use.

The limits are those of the host, of the control group, and of the process's own address space. A
container is killed at its own limit while the host has plenty. Under `ulimit -v`, the next
allocation fails in the user's code. So the smallest limit counts. Without /proc nothing is known,
and no capture ends for lack of memory.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from stepprof.interrupts import ours

_STATM = Path("/proc/self/statm")

_MEMINFO = Path("/proc/meminfo")
_VMSTAT = Path("/proc/vmstat")
_GROUPS = (
    (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory.current"),
        Path("/sys/fs/cgroup/memory.stat"),
    ),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.stat"),
    ),
)


def available_and_total() -> tuple[int, int] | None:
    """Return (available bytes, total bytes) of the tightest of host, control group and address
    space.

    Return None if none is known.
    """
    asked = (_host(), *(_group(*paths) for paths in _GROUPS), _address_space())
    found = [pair for pair in asked if pair is not None]
    return min(found, key=lambda pair: pair[0]) if found else None


def _host() -> tuple[int, int] | None:
    text = _read(_MEMINFO)
    sizes = {
        key: int(kilobytes) * 1024 for key, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    }
    if "MemAvailable" in sizes and "MemTotal" in sizes:
        return sizes["MemAvailable"], sizes["MemTotal"]
    return None


def _group(limit: Path, usage: Path, stat: Path) -> tuple[int, int] | None:
    bound, used = _read(limit).strip(), _read(usage).strip()
    if not bound.isdigit() or not used.isdigit() or int(bound) >= 1 << 60:
        return None
    # the page cache counts as used, but the kernel reclaims it before it kills a process
    cache = re.search(r"^(?:total_)?inactive_file (\d+)", _read(stat), re.MULTILINE)
    return int(bound) - int(used) + (int(cache[1]) if cache else 0), int(bound)


def _address_space() -> tuple[int, int] | None:
    """Return what remains of `ulimit -v`, which batch systems set."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _read(_STATM).split()
    if limit == resource.RLIM_INFINITY or not used:
        return None
    return limit - int(used[0]) * os.sysconf("SC_PAGE_SIZE"), limit


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except ours(OSError):
        return ""


def out_of_memory_kills() -> int | None:
    """Return how many processes the kernel of this host has killed for lack of memory, also of control groups; None: unknown."""
    found = re.search(r"^oom_kill (\d+)$", _read(_VMSTAT), re.MULTILINE)
    return int(found[1]) if found else None


def resident_bytes() -> int | None:
    """Return the resident memory of this process; None if the system does not provide it."""
    fields = _read(_STATM).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 and fields[1].isdigit() else None


def device_bytes() -> int | None:
    """Return the memory that torch has allocated on all devices of this process.

    Return None if torch is not loaded or has not used a device. Loads nothing.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return None
    return sum(int(cuda.memory_allocated(device)) for device in range(cuda.device_count()))
