"""What stands in the way of recording on an Ascend device, beyond torch_npu itself, which is tried in a process of its own (`torchprobe`). Nothing is imported here."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping

from stepprof.doctor.finding import Finding
from stepprof.errors import BackendError
from stepprof.host.device_lease import lease_folder

__all__ = ["npu_findings"]

_NO_OP = ("PROFILER_SAMPLECONFIG", "PROFILING_MODE")
_SWITCHED_ON = ("PROF_CONFIG_PATH", "MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON")


def npu_findings(environ: Mapping[str, str]) -> list[Finding]:
    """None where torch_npu is not installed."""
    if importlib.util.find_spec("torch_npu") is None:
        return []
    return [*_environment(environ), *_leases()]


def _environment(environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in _NO_OP:
        if environ.get(name):
            yield Finding(
                "npu environment",
                "problem",
                f"{name}={environ[name]}: msprof records such a process, and torch_npu's profiler does nothing in it",
                f'unset {name} to record with backend = "npu"',
            )
            return
    for name in _SWITCHED_ON:
        if environ.get(name, "0") not in ("", "0"):
            yield Finding(
                "npu environment",
                "warning",
                f"{name}={environ[name]}: torch_npu starts a profiler of its own in this process, and stepprof leaves it alone",
                f"unset {name} where stepprof is to record",
            )
            return
    yield Finding("npu environment", "ok", "nothing in the environment takes the profiler away")


def _leases() -> Iterator[Finding]:
    try:
        folder = lease_folder()
    except BackendError as error:
        yield Finding(
            "npu leases",
            "warning",
            str(error),
            "set lease_dir in the table [npu] to a folder on a local disk",
        )
        return
    yield Finding(
        "npu leases",
        "ok",
        f"processes that share a device take turns by {folder}; containers do where they share one",
    )
