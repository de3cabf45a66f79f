"""Check what Nsight Systems needs on this machine, and which tools conflict with torch's profiler.

Nothing is loaded or started here except ``nsys`` itself, to get its version and options.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from stepprof.backends.nsys.cuda import libraries
from stepprof.backends.nsys.launch import answer, discards_environment, profile_help, writes_one_by_one
from stepprof.backends.nsys.process import launch_of, under_nsys
from stepprof.backends.nsys.secrets import secrets
from stepprof.config.options.nsys import NsysOptions
from stepprof.doctor import finding
from stepprof.doctor.finding import Finding
from stepprof.formatting import install


def nsys_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check the subscribers of CUPTI, the installation of nsys, and whether a window would be
    recorded.
    """
    yield from _injection(environ)
    yield from _nsys(environ)
    yield from _window(environ)


def _injection(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Find other subscribers of CUPTI. It allows one per process: a tool that subscribes before
    torch's Kineto keeps kernels out of torch's traces.
    """
    conflicts = []
    for variable in ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH", "CUDA_INJECTION64_PATH", "LD_PRELOAD"):
        value = environ.get(variable, "")
        if "cupti" in value.lower():
            yield Finding(
                "cupti",
                "problem",
                f"{variable}={value}: libcupti becomes CUPTI's one subscriber at the first NVTX range, and torch.profiler records no kernels (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)",
                f"unset {variable} for the training process",
            )
            return
        if value and (
            variable != "LD_PRELOAD" or re.search(r"nsys|nsight|nvtx|rocprof|omnitrace|ToolsInjection", value)
        ):
            conflicts.append(f"{variable}={value}")
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        conflicts.append("the process runs under nsys")
    if conflicts:
        yield Finding(
            "cupti",
            "warning",
            f"{'; '.join(conflicts)}: CUPTI allows one subscriber per process, and these settings may start another one",
            'record with backend = "nsys", or remove it to record with backend = "torch"',
        )
    else:
        yield Finding(
            "cupti", "ok", "no environment variable makes another tool subscribe to CUPTI before torch"
        )


def _nsys(environ: Mapping[str, str]) -> Iterator[Finding]:
    found = shutil.which("nsys", path=environ.get("PATH"))
    if found is None:
        yield Finding("nsys", "ok", 'not on PATH (only needed for backend = "nsys")')
        return
    try:
        done = answer(found, "--version", seconds=20)
        text = (done.stdout or done.stderr).strip().splitlines()
        problem = None if text and not done.returncode else f"--version: exit status {done.returncode}"
    except (OSError, subprocess.SubprocessError) as error:
        problem = f"does not run: {error}"
    if problem is not None:
        remedy = "reinstall Nsight Systems, or remove it from PATH"
        yield Finding("nsys", "warning", f"{found} {problem}", remedy)
        return
    yield Finding("nsys", "ok", f"{text[0]} ({found})")
    yield from _reports(found, environ)
    paranoid = finding.read("/proc/sys/kernel/perf_event_paranoid").strip()
    if paranoid.lstrip("-").isdigit() and int(paranoid) > 2:
        yield Finding(
            "nsys sampling",
            "warning",
            f"kernel.perf_event_paranoid is {paranoid}: nsys cannot sample CPU stacks without privileges",
            "sysctl kernel.perf_event_paranoid=2 (in a container: on its host)",
        )


def _reports(nsys: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check which report options this version of nsys supports."""
    text = profile_help(nsys)
    names = secrets(environ)
    when = (
        "each report at the end of its window"
        if writes_one_by_one(text)
        else "reports after the last window: the configured number of windows must be right"
    )
    if names and not discards_environment(text):
        yield Finding(
            "nsys reports",
            "warning",
            f"it writes {when}; the reports would contain environment variables: {', '.join(names)}",
            "unset these variables for the profiled process, or update Nsight Systems to a version with --discard-environment",
        )
    else:
        left_out = "left out" if discards_environment(text) else "part of them"
        yield Finding("nsys reports", "ok", f"it writes {when}; the environment is {left_out}")


def _window(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether a window would be recorded in this environment."""
    try:
        marks = f"nvtx {metadata.version('nvtx')} marks regions"
        missing = ""
    except metadata.PackageNotFoundError:
        marks, missing = "regions would not be marked: nvtx is not installed", install("nsys")
    library = next((path for path in libraries(environ) if os.sep in path and Path(path).exists()), None)
    if not under_nsys(environ):
        where = library or "none was found outside of the loader's own folders"
        yield Finding(
            "nsys window",
            "ok",
            f"not running under nsys (only needed for backend = 'nsys'); {marks}; libcudart: {where}",
            applies=False,
        )
        return
    launch = launch_of(NsysOptions(), environ)
    if launch.folder is None:
        yield Finding(
            "nsys window",
            "warning",
            "under nsys, but its report folder is unknown: a window would be lost",
            "start nsys with stepprof.backends.nsys.backend.nsys_command(config), or set report_dir in [nsys]",
        )
    elif missing:
        yield Finding("nsys window", "warning", f"under nsys, reports in {launch.folder}; {marks}", missing)
    else:
        ranges = "any number of windows" if launch.ranges is None else f"{launch.ranges} windows"
        yield Finding("nsys window", "ok", f"under nsys, {ranges}, reports in {launch.folder}; {marks}")
