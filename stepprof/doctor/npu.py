"""Check what can prevent recording on an Ascend device, apart from torch_npu itself.

torch_npu is tried in a separate process. This module imports nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping

from stepprof.doctor.finding import Finding
from stepprof.errors import BackendError
from stepprof.host.device_lease import lease_folder

_NO_OP = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")
_SWITCHED_ON = ("PROF_CONFIG_PATH", "MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON")


def npu_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Return the findings; none if torch_npu is not installed."""
    if importlib.util.find_spec("torch_npu") is None:
        return []
    return [*_environment(environ), *_leases()]


def _environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in _NO_OP:
        if environ.get(name):
            yield Finding(
                "npu environment",
                "problem",
                f"{name}={environ[name]}: msprof records this process, so torch_npu's profiler is inactive",
                f'unset {name} to record with backend = "npu"',
            )
            return
    for name in _SWITCHED_ON:
        if environ.get(name, "0") not in ("", "0"):
            yield Finding(
                "npu environment",
                "warning",
                f"{name}={environ[name]}: torch_npu starts its own profiler in this process, so stepprof does not record",
                f"unset {name} to record with stepprof",
            )
            return
    yield Finding("npu environment", "ok", "no environment variable blocks the profiler")


def _leases() -> Iterator[Finding]:
    try:
        folder = lease_folder()
    except BackendError as error:
        yield Finding(
            "npu leases",
            "warning",
            str(error),
            "set lease_dir in [npu] to a folder on a local disk",
        )
        return
    yield Finding(
        "npu leases",
        "ok",
        f"processes that share a device coordinate through {folder}; containers only do so if they share it",
    )
