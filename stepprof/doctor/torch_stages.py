"""Describe the results of the torch probe, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stepprof.doctor.finding import Finding
from stepprof.formatting import install

INSTALL = install("torch")
CANN = "install the matching CANN and source its set_env.sh, or pip uninstall torch_npu; TORCH_DEVICE_BACKEND_AUTOLOAD=0 imports torch without it"
MEMORY = "memory history"
_NO_MEMORY = 'do not use backend = "memory", or try another torch version'
_Found = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the probe: its description, and its finding if it raises."""

    doing: str
    describe: Callable[[_Found], Iterator[Finding]]
    name: str
    failed: str
    remedy: str
    level: Literal["warning", "problem"] = "problem"


def stage_findings(stages: Mapping[str, _Found]) -> Iterator[Finding]:
    """Yield the findings of the stages that ended, torch first."""
    for key, stage in STAGES.items():
        found = stages.get(key)
        if found is None:
            continue
        if "error" in found:
            yield Finding(stage.name, stage.level, f"{stage.failed}: {found['error']}", stage.remedy)
        else:
            yield from stage.describe(found)


def _torch(found: _Found) -> Iterator[Finding]:
    if not found["installed"]:
        problem = 'not installed: backend = "torch" cannot record; spans are still recorded'
        yield Finding("torch", "warning", problem, INSTALL)
        return
    build = f"built for {found['cuda_build']}" if found["cuda_build"] else "CPU build"
    yield Finding("torch", "ok", f"{found['version']}, {build} ({found['path']})")


def _options(found: _Found) -> Iterator[Finding]:
    if found["profile_all_threads"]:
        yield Finding(
            "all threads",
            "ok",
            "profile_all_threads is supported: a capture covers all threads, and any thread can stop it",
        )
    else:
        yield Finding(
            "all threads",
            "warning",
            "profile_all_threads is not supported: a capture covers only the thread that started it",
            "torch 2.7 or newer records all threads",
        )
    yield Finding(
        "trace_only",
        "ok",
        "supported: stopping a capture takes a third less time"
        if found["trace_only"]
        else "not supported by this torch: stopping a capture takes 1.5 times as long (torch 2.13 supports it)",
    )


def _devices(found: _Found) -> Iterator[Finding]:
    text = "; ".join(
        f"{kind}: {len(names)} x {names[0]}" for kind, names in found["devices"].items() if names
    )
    yield Finding(
        "accelerators", "ok", f"{text or 'none'}; the profiler can record: {', '.join(found['activities'])}"
    )
    for kind in ("cuda", "xpu"):
        if found["devices"].get(kind) and kind.upper() not in found["activities"]:
            yield Finding(
                "kernels",
                "problem",
                f"{kind} is present, but this torch cannot record its kernels",
                "install a torch that was built with Kineto's support for it",
            )


def _cpu_capture(found: _Found) -> Iterator[Finding]:
    if found["events"]:
        yield Finding("cpu capture", "ok", f"a small capture has {found['events']} operations")
    else:
        yield Finding("cpu capture", "problem", "a small capture is empty", f"reinstall torch: {INSTALL}")


def _device_capture(found: _Found) -> Iterator[Finding]:
    if found["device"] is None:
        return
    if found["events"]:
        yield Finding("kernel capture", "ok", f"a small capture has {found['events']} kernels")
    else:
        yield Finding(
            "kernel capture",
            "problem",
            f"a small capture on {found['device']} has no kernel",
            "another tool is subscribed to CUPTI (see the line about cupti; a monitoring agent; a debugger), or libcupti does not match the driver",
        )


def _memory(found: _Found) -> Iterator[Finding]:
    """Describe whether snapshots of CUDA's allocator are possible."""
    if not found["build"] or not found["devices"]:
        why = "no CUDA device is visible" if found["build"] else "this torch is not built for CUDA"
        text = f'not available: {why} (only needed for backend = "memory")'
        yield Finding(MEMORY, "ok", text, applies=False)
    elif found["allocator"] != "native":
        yield Finding(
            MEMORY,
            "warning",
            f"CUDA's allocator is {found['allocator']}, which keeps no history",
            "remove the backend from PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF)",
        )
    elif not found["entries"]:
        yield Finding(MEMORY, "problem", "a small history of CUDA's allocator is empty", _NO_MEMORY)
    else:
        observer = "" if found["observer"] else "; this torch does not support on_oom"
        yield Finding(MEMORY, "ok", f"a small history has {found['entries']} entries{observer}")


def _npu(found: _Found) -> Iterator[Finding]:
    if not found["installed"]:
        return
    if found["available"]:
        yield Finding("torch_npu", "ok", str(found["version"]))
    else:
        yield Finding(
            "torch_npu",
            "warning",
            f"{found['version']}, but no NPU is present",
            "check npu-smi info for what the driver detects",
        )


def _isal(found: _Found) -> Iterator[Finding]:
    if found["installed"]:
        yield Finding("isal", "ok", "traces are compressed with igzip")
    else:
        slow = "not installed: traces are compressed with zlib, about four times slower"
        yield Finding("isal", "warning", slow, INSTALL)


_REINSTALL = f"reinstall torch: {INSTALL}"
STAGES = {
    "torch": Stage("importing torch", _torch, "torch", "import torch fails", _REINSTALL),
    "options": Stage(
        "asking for profiler options",
        _options,
        "torch options",
        "query failed",
        "a newer torch is needed to record all threads",
        "warning",
    ),
    "devices": Stage(
        "looking for accelerators",
        _devices,
        "accelerators",
        "detection failed",
        "check the driver (nvidia-smi, npu-smi info)",
    ),
    "cpu_capture": Stage(
        "recording on the CPU", _cpu_capture, "cpu capture", "a small capture fails", _REINSTALL
    ),
    "device_capture": Stage(
        "recording on the accelerator",
        _device_capture,
        "kernel capture",
        "a small capture fails",
        "check the line about cupti, and whether another profiler uses this GPU",
    ),
    "memory": Stage(
        "keeping the history of CUDA's allocator",
        _memory,
        MEMORY,
        "a small history of CUDA's allocator fails",
        _NO_MEMORY,
    ),
    "npu": Stage("importing torch_npu", _npu, "torch_npu", "import torch_npu fails", CANN),
    "isal": Stage(
        "importing isal",
        _isal,
        "isal",
        "cannot be imported",
        "pip install --force-reinstall isal",
        "warning",
    ),
}
