"""Check what the machine can record: one finding per possible problem, each with a remedy.

Nothing here changes the machine. Nothing that may crash or hang runs in this process: torch is
tried in another process, under a time limit. Facts that the system does not provide are omitted.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat, starmap
from pathlib import Path

from stepprof.doctor import finding
from stepprof.doctor.finding import Finding
from stepprof.doctor.nsys import nsys_findings
from stepprof.formatting import size
from stepprof.host.atomic_files import place
from stepprof.host.memory import available_and_total

_GIB = 2**30
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - measured and named; nothing is made there
_FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")


def machine_findings(output_dir: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Run all checks except torch's."""
    probes: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        lambda: nsys_findings(environ),
        _permissions,
        lambda: _output_dir(output_dir),
        _shared_memory,
        _memory,
        _clock,
    )
    return [found for probe in probes for found in probe()]


def _python() -> Iterator[Finding]:
    text = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info >= (3, 14):
        yield Finding("python", "warning", text, "stepprof is tested on Python 3.10 to 3.13")
    elif sys.gettrace() is not None:
        yield Finding(
            "python",
            "warning",
            f"{text}, under a debugger or a coverage tracer",
            "record without it: it slows down every region",
        )
    else:
        yield Finding("python", "ok", text)


def _permissions() -> Iterator[Finding]:
    """Check who may inspect a training process and read the GPU's counters."""
    driver = finding.read("/proc/driver/nvidia/params")
    if re.search(r"RmProfilingAdminOnly:\s*1", driver) and os.geteuid() != 0:
        yield Finding(
            "gpu counters",
            "warning",
            "the NVIDIA driver restricts performance counters to administrators; kernels are recorded without them",
            "for counters, set NVreg_RestrictProfilingToAdminUsers=0 for the driver's module, or grant CAP_SYS_ADMIN",
        )
    scope = finding.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope == "3":
        yield Finding(
            "ptrace",
            "warning",
            "kernel.yama.ptrace_scope is 3: no debugger or sampler can attach to a hanging rank (stepprof does not need to)",
            "to allow it, set sysctl kernel.yama.ptrace_scope=1 and reboot",
        )
    elif scope:
        yield Finding(
            "ptrace", "ok", f"kernel.yama.ptrace_scope is {scope}; stepprof does not attach to processes"
        )


def _output_dir(folder: Path) -> Iterator[Finding]:
    place_to_try = folder.absolute()
    while not place_to_try.exists() and place_to_try != place_to_try.parent:
        place_to_try = place_to_try.parent
    remedy = "choose another folder: output_dir in the config, or $STEPPROF_OUTPUT_DIR"
    try:
        with tempfile.TemporaryDirectory(dir=place_to_try, prefix=".stepprof-doctor-") as name:
            first = Path(name, "first")
            first.write_bytes(b"x")
            place(first, Path(name, "second"))
        free = shutil.disk_usage(place_to_try).free
    except OSError as error:
        yield Finding(
            "output_dir",
            "problem",
            f"{folder} cannot be written: {error.filename or place_to_try}: {error.strerror or error}",
            remedy,
        )
        return
    text = f"{folder.absolute()} can be written; {size(free)} free"
    kind = _filesystem(place_to_try)
    if free < _GIB // 4:
        yield Finding("output_dir", "problem", f"{text}: one trace of a large step may need more", remedy)
    elif free < 10 * _GIB:
        yield Finding(
            "output_dir",
            "warning",
            f"{text}: a trace can take several GiB per rank",
            f"free some space, lower max_bytes, or {remedy}",
        )
    elif kind in ("tmpfs", "ramfs"):
        yield Finding(
            "output_dir",
            "warning",
            f"{text}, in memory ({kind}): traces use memory that training needs",
            remedy,
        )
    else:
        yield Finding("output_dir", "ok", text + (f" ({kind})" if kind else ""))


def _shared_memory() -> Iterator[Finding]:
    if not _SHARED_MEMORY.is_dir():
        return
    total, _, free = shutil.disk_usage(_SHARED_MEMORY)
    text = f"{size(total)}, {size(free)} free"
    if total < _GIB:
        yield Finding(
            "/dev/shm",  # noqa: S108 - measured and named; nothing is made there
            "warning",
            f"{text}: DataLoader workers, NCCL and Ray's object store use it; Docker's default of 64 MiB leads to bus errors",
            "docker run --shm-size=16g, or in Kubernetes an emptyDir with medium: Memory",
        )
    else:
        yield Finding("/dev/shm", "ok", text)  # noqa: S108 - measured and named; nothing is made there


def _memory() -> Iterator[Finding]:
    found = available_and_total()
    if found is None:
        return
    available, total = found
    text = f"{size(available)} of {size(total)} available (the tighter of host and container)"
    if available < max(total // 10, _GIB):
        yield Finding(
            "memory",
            "warning",
            f"{text}: torch holds about 4 kB per operation until a trace is written",
            "record fewer ranks or a shorter window; min_free_memory stops a capture before the host runs out of memory",
        )
    else:
        yield Finding("memory", "ok", text)


def _clock() -> Iterator[Finding]:
    source = finding.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").strip()
    cost = min(_reading_ns() for _ in range(20))  # other programs are in the way of some
    text = f"a reading takes {cost:.0f} ns" + (f" (clock source {source})" if source else "")
    if cost > 500 or (source and source not in _FAST_CLOCKS):
        yield Finding(
            "clock",
            "warning",
            f"{text}: slow, and every region takes two readings",
            "boot with clocksource=tsc if the hardware supports it",
        )
    else:
        yield Finding("clock", "ok", text)


def _reading_ns(count: int = 1_000) -> float:
    """Return the mean time of one clock reading in nanoseconds, over `count` readings."""
    begin = time.perf_counter_ns()
    deque(
        starmap(time.perf_counter_ns, repeat((), count)), maxlen=0
    )  # a loop in Python would cost more than the reading
    return (time.perf_counter_ns() - begin) / count


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds a path; empty if the system does not provide
    it.
    """
    best = ("", "")
    for line in finding.read("/proc/mounts").splitlines():
        _, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
