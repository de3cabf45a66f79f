"""What stands in the way of snapshots of CUDA's allocator, from what the torch probe tried in its own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stepprof.doctor.finding import Finding

__all__ = ["memory_findings"]

NAME = "memory history"


def memory_findings(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    """One finding; none where torch itself could not be tried."""
    if found is None:
        return
    if "error" in found:
        yield Finding(
            NAME,
            "problem",
            f"a small history of CUDA's allocator fails: {found['error']}",
            'leave backend = "memory" out, or try another torch',
        )
    elif not found["build"]:
        yield Finding(
            NAME,
            "ok",
            'not here: this torch is not built for CUDA; only backend = "memory" needs it',
            applies=False,
        )
    elif not found["devices"]:
        yield Finding(
            NAME,
            "ok",
            'not here: no CUDA device is visible; only backend = "memory" needs one',
            applies=False,
        )
    elif found["allocator"] != "native":
        yield Finding(
            NAME,
            "warning",
            f"CUDA's allocator is {found['allocator']}, which keeps no history",
            "take the backend out of PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF)",
        )
    elif not found["entries"]:
        yield Finding(
            NAME,
            "problem",
            "a small history of CUDA's allocator is empty",
            'leave backend = "memory" out, or try another torch',
        )
    else:
        observer = "" if found["observer"] else "; on_oom is not possible with this torch"
        yield Finding(NAME, "ok", f"a small history has {found['entries']} entries{observer}")
