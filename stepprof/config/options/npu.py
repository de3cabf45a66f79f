"""Options of the npu backend.

torch_npu warns about invalid combinations and then records something else. They are refused here,
before a job begins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepprof.config.validators import checked, choice, folder, names, seconds, settle, texts
from stepprof.errors import ConfigError

METRICS = {
    "pipe_utilization": "PipeUtilization",
    "arithmetic_utilization": "ArithmeticUtilization",
    "memory": "Memory",
    "memory_l0": "MemoryL0",
    "memory_ub": "MemoryUB",
    "memory_access": "MemoryAccess",
    "resource_conflict_ratio": "ResourceConflictRatio",
    "l2_cache": "L2Cache",
}
"""Metrics of the AI cores, and their names in torch_npu."""

_HOST_SYS = ("cpu", "mem", "disk", "network", "osrt", "numa")
_OF_THE_DEVICE = ("aic_metrics", "l2_cache", "record_op_args", "op_attr", "host_sys", "sys_io", "sys_interconnection", "mstx", "mstx_domain_include", "mstx_domain_exclude")  # fmt: skip


def _milliseconds(value: object, key: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (value >= 0 and math.isfinite(value))
    ):
        raise ConfigError.at(key, value, "expected a number of milliseconds, 0 or more, such as 1")
    return float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class NpuOptions:
    """What torch_npu.profiler records on an Ascend device.

    >>> NpuOptions(level="level1", aic_metrics="memory").record_shapes
    False
    """

    activities: Sequence[str] | None = checked(None, names(("cpu", "npu"), {"gpu": "npu", "cuda": "npu"}))
    """The recorded activities, of "cpu" and "npu"; None: both."""
    level: str = checked("level0", choice("none", "level0", "level1", "level2"))
    """Detail of the device's records: "none" (only ranges), "level0", "level1" or "level2"."""
    aic_metrics: str | None = checked(None, choice(*METRICS))
    """Metric of the AI cores, such as "pipe_utilization" or "memory"; needs level1 or level2; None:
    torch_npu's choice at those levels.
    """
    l2_cache: bool = False
    """Count the hits and misses of the L2 cache."""
    with_stack: bool = False
    """Python stacks of each op."""
    record_shapes: bool = False
    """Shapes of each op's inputs."""
    profile_memory: bool = False
    """Allocations and frees."""
    with_modules: bool = False
    """The module hierarchy of each op."""
    with_flops: bool = False
    """An estimate of the floating-point operations of each op."""
    record_op_args: bool = False
    """Dump the arguments of operators, for operator tuning."""
    op_attr: bool = False
    """Attributes of each operator; needs export_type "db"."""
    gc_detect_threshold: float | None = checked(None, _milliseconds)
    """Record garbage collections of Python that take at least this many milliseconds; 0: all; None:
    none.
    """
    host_sys: Sequence[str] | None = checked(None, names(_HOST_SYS, {"memory": "mem"}))
    """What to sample of the host, of "cpu", "mem", "disk", "network", "osrt", "numa"; None: nothing."""
    sys_io: bool = False
    """Sample the device's network interfaces."""
    sys_interconnection: bool = False
    """Sample the links between devices and PCIe."""
    mstx: bool | None = None
    """Record ranges: windows and regions are on the device's timeline then; None: with the device."""
    mstx_domain_include: Sequence[str] | None = checked(None, texts)
    """Domains of ranges to record besides stepprof's own; None, without an exclude: no others."""
    mstx_domain_exclude: Sequence[str] | None = checked(None, texts)
    """Domains of ranges to omit, such as ["communication"]; all others are recorded."""
    export_type: Sequence[str] = checked(("text",), names(("text", "db")))
    """Output of an analysis: "text" (trace_view.json and tables), "db", or both."""
    data_simplification: bool = True
    """Let an analysis delete its intermediate files."""
    warm_up: bool = True
    """Prepare the session when the previous step ends; false: at the beginning of the window, so
    that an armed process holds no session.
    """
    analyse: bool = False
    """Analyse each capture inside the job, in a child process, instead of later with `stepprof analyse`."""
    analyse_timeout_seconds: float = checked(600.0, seconds)
    """Timeout of an analysis inside the job."""
    lease_dir: Path | None = checked(None, folder)
    """The folder where the processes of this host lock devices; None: /tmp/stepprof-<uid>. Containers
    that share a device need a folder that all of them mount.
    """
    lease_wait_seconds: float = checked(5.0, seconds)
    """How long a window waits for a device that another process records, before it is skipped."""

    def __post_init__(self) -> None:
        """Check every field, and the combinations that torch_npu would reset."""
        settle(self)
        for key, problem in self._reset_by_torch_npu():
            raise ConfigError.at(key, getattr(self, key), problem)

    @property
    def on_device(self) -> bool:
        """Return whether the device is recorded."""
        return self.activities is None or "npu" in self.activities

    @property
    def on_host(self) -> bool:
        """Return whether torch's ops are recorded."""
        return self.activities is None or "cpu" in self.activities

    @property
    def ranges(self) -> bool:
        """Return whether ranges are recorded."""
        return self.on_device if self.mstx is None else self.mstx

    def _reset_by_torch_npu(self) -> Iterator[tuple[str, str]]:
        """Yield each key whose value torch_npu would reset, with the reason and the remedy."""
        both = 'did you mean activities = ["cpu", "npu"]?'
        if not self.on_device:
            for key in _OF_THE_DEVICE:
                if getattr(self, key):
                    yield key, f"needs the device; {both}"
            if self.level != "level0":
                yield "level", f"needs the device; {both}"
        if not self.on_host and self.gc_detect_threshold is not None:
            yield "gc_detect_threshold", f"needs the host; {both}"
        if self.aic_metrics is not None and self.level in ("none", "level0"):
            yield "aic_metrics", 'needs more than level0; did you mean level = "level1" with it?'
        if self.op_attr and "db" not in self.export_type:
            written = "is written only into the database"
            yield "op_attr", f'{written}; did you mean export_type = ["text", "db"] with it?'
        if self.mstx_domain_include and self.mstx_domain_exclude:
            remedy = "torch_npu ignores it together with mstx_domain_include; remove one of the two"
            yield "mstx_domain_exclude", remedy
        if self.mstx is False:
            for key, needed in (
                ("level", self.level == "none"),
                ("with_flops", self.with_flops),
                ("mstx_domain_include", self.mstx_domain_include),
                ("mstx_domain_exclude", self.mstx_domain_exclude),
            ):
                if needed:
                    yield key, "needs mstx; did you mean mstx = true?"
