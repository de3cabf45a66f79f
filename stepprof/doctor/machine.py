"""What a machine can record, one finding per thing that may stand in the way, each with what to do about it.

Nothing here changes the machine, and nothing that may crash or hang runs in this process: torch is tried in another one (`torchprobe`), under a time limit. What the system does not tell is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stepprof.doctor import finding
from stepprof.doctor.finding import Finding
from stepprof.doctor.nsys import nsys_findings
from stepprof.formatting import size
from stepprof.host.atomic_files import place
from stepprof.host.memory import available_and_total

__all__ = ["machine_findings"]

_GIB = 2**30
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - measured and named; nothing is made there
_FAST_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")


def machine_findings(output_dir: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Everything but torch."""
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
            "record without it: each region would show its cost",
        )
    else:
        yield Finding("python", "ok", text)


def _permissions() -> Iterator[Finding]:
    """Who may look at a training process and at the GPU's counters."""
    driver = finding.read("/proc/driver/nvidia/params")
    if re.search(r"RmProfilingAdminOnly:\s*1", driver) and os.geteuid() != 0:
        yield Finding(
            "gpu counters",
            "warning",
            "the NVIDIA driver gives performance counters to administrators only; kernels are recorded all the same",
            "NVreg_RestrictProfilingToAdminUsers=0 for the driver's module, or CAP_SYS_ADMIN, where counters are wanted",
        )
    scope = finding.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    if scope == "3":
        yield Finding(
            "ptrace",
            "warning",
            "kernel.yama.ptrace_scope is 3: no debugger or sampler can attach to a hanging rank; stepprof needs none",
            "sysctl kernel.yama.ptrace_scope=1 and a restart, where that is wanted",
        )
    elif scope:
        yield Finding(
            "ptrace", "ok", f"kernel.yama.ptrace_scope is {scope}; stepprof itself attaches to nothing"
        )


def _output_dir(folder: Path) -> Iterator[Finding]:
    place_to_try = folder.absolute()
    while not place_to_try.exists() and place_to_try != place_to_try.parent:
        place_to_try = place_to_try.parent
    remedy = "name another folder: output_dir in the config, or $STEPPROF_OUTPUT_DIR"
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
        yield Finding("output_dir", "problem", f"{text}: one trace of a large step may take more", remedy)
    elif free < 10 * _GIB:
        yield Finding(
            "output_dir",
            "warning",
            f"{text}: a trace takes up to some GiB per rank",
            f"free some space, lower max_bytes, or {remedy}",
        )
    elif kind in ("tmpfs", "ramfs"):
        yield Finding(
            "output_dir",
            "warning",
            f"{text}, in memory ({kind}): traces take the memory that training needs",
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
            f"{text}: DataLoader workers, NCCL and Ray's object store keep their data there, and a Docker default of 64 MiB ends in a bus error",
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
            "record fewer ranks or a shorter window; min_free_memory ends a capture before the host runs out",
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
            f"{text}: slow, and every region pays for two",
            "boot with clocksource=tsc where the hardware allows it",
        )
    else:
        yield Finding("clock", "ok", text)


def _reading_ns(count: int = 1_000) -> float:
    """Nanoseconds that one reading of the clock takes, over so many."""
    begin = time.perf_counter_ns()
    for _ in range(count):
        time.perf_counter_ns()
    return (time.perf_counter_ns() - begin) / count


def _filesystem(path: Path) -> str:
    """The kind of file system that holds a path; empty where the system does not tell."""
    best = ("", "")
    for line in finding.read("/proc/mounts").splitlines():
        _, mount, kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
