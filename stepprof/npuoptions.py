"""The table of options of the npu backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.checks import choice, flag, names, settle

__all__ = ["NpuOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NpuOptions:
    """What torch_npu.profiler records on an Ascend device."""

    activities: Sequence[str] | None = None
    """Which activities to record, out of "cpu" and "npu"; None: both."""
    level: str = "level0"
    """How much the device records: "none", "level0", "level1" or "level2"."""
    with_stack: bool = False
    """Python stacks of each op."""
    record_shapes: bool = False
    """Shapes of each op's inputs."""
    profile_memory: bool = False
    """Allocations and frees."""
    with_modules: bool = False
    """The module hierarchy of each op."""
    analyse: bool = False
    """Analyse the capture inside the job instead of later; it forks, and takes more than a second."""

    def __post_init__(self) -> None:
        """Check every field."""
        settle(
            self,
            {
                "activities": names(("cpu", "npu"), {"gpu": "npu", "cuda": "npu"}),
                "level": choice("none", "level0", "level1", "level2"),
                **dict.fromkeys(
                    ("with_stack", "record_shapes", "profile_memory", "with_modules", "analyse"), flag
                ),
            },
        )
