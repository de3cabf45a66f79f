"""Check whether snapshots of CUDA's allocator are possible, from the results of the torch probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepprof.doctor.finding import Finding

__all__ = ["memory_findings"]

NAME = "memory history"


def memory_findings(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Return one finding, or none if torch itself could not be tried."""
    if found is None:
        return
    if "error" in found:
        yield Finding(
            NAME,
            "problem",
            f"a small history of CUDA's allocator fails: {found['error']}",
            'do not use backend = "memory", or try another torch version',
        )
    elif not found["build"]:
        yield Finding(
            NAME,
            "ok",
            'not available: this torch is not built for CUDA (only needed for backend = "memory")',
            applies=False,
        )
    elif not found["devices"]:
        yield Finding(
            NAME,
            "ok",
            'not available: no CUDA device is visible (only needed for backend = "memory")',
            applies=False,
        )
    elif found["allocator"] != "native":
        yield Finding(
            NAME,
            "warning",
            f"CUDA's allocator is {found['allocator']}, which keeps no history",
            "remove the backend from PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF)",
        )
    elif not found["entries"]:
        yield Finding(
            NAME,
            "problem",
            "a small history of CUDA's allocator is empty",
            'do not use backend = "memory", or try another torch version',
        )
    else:
        observer = "" if found["observer"] else "; this torch does not support on_oom"
        yield Finding(NAME, "ok", f"a small history has {found['entries']} entries{observer}")
