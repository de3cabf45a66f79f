"""Find out what torch can record here, by trying. `stepprof doctor` runs this file in a separate
process.

Each of these imports and captures may crash or hang. The probe prints one JSON object per line:
{"begin": stage} before a stage and {"stage": name, ...} after it, so the reader knows how far it came.
It uses no other module of stepprof, and ASCII only, because its source is an argument of the other process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any


def main() -> int:
    """Run all stages. Return 0 even if stages fail."""
    state: dict[str, Any] = {}
    for stage in (isal, torch, options, devices, cpu_capture, device_capture, memory, npu):
        print(json.dumps({"begin": stage.__name__}), flush=True)  # noqa: T201 - read by the parent process
        print(json.dumps({"stage": stage.__name__, **_outcome(stage, state)}, default=str), flush=True)  # noqa: T201 - read by the parent process
        if stage is torch and "torch" not in state:
            break
    return 0


def _outcome(stage: Callable[[dict[str, Any]], dict[str, Any]], state: dict[str, Any]) -> dict[str, Any]:
    try:
        return stage(state)
    except BaseException as error:  # noqa: BLE001 - this process exists to find out what fails
        causes = [error]
        while causes[-1].__cause__ is not None:
            causes.append(causes[-1].__cause__)
        return {"error": " <- ".join(f"{type(cause).__name__}: {cause}" for cause in causes)}


def isal(_: dict[str, Any]) -> dict[str, Any]:
    """Import the fast gzip."""
    if importlib.util.find_spec("isal") is None:
        return {"installed": False}
    igzip: Any = importlib.import_module("isal.igzip")
    return {"installed": True, "works": igzip.decompress(igzip.compress(b"x")) == b"x"}


def torch(state: dict[str, Any]) -> dict[str, Any]:
    """Import torch."""
    if importlib.util.find_spec("torch") is None:
        return {"installed": False}
    import torch as module
    import torch.profiler

    state["torch"] = module
    return {
        "installed": True,
        "version": module.__version__,
        "cuda_build": module.version.cuda or getattr(module.version, "hip", None),
        "path": os.path.dirname(module.__file__),  # noqa: PTH120 - this file imports as little as possible
    }


def options(state: dict[str, Any]) -> dict[str, Any]:
    """Find the experimental options that this torch accepts. They are tried, because builds of one
    version differ.
    """
    make = state["torch"].profiler._ExperimentalConfig
    accepted = {}
    for name in ("profile_all_threads", "trace_only"):
        try:
            make(**{name: True})
            accepted[name] = True
        except TypeError:
            accepted[name] = False
    state["options"] = {name: True for name, yes in accepted.items() if yes}
    return accepted


def devices(state: dict[str, Any]) -> dict[str, Any]:
    """List the accelerators, and the activities that the profiler can record."""
    module = state["torch"]
    found: dict[str, list[str]] = {}
    for kind in ("cuda", "xpu", "npu", "mps"):
        api = getattr(module, kind, None)
        if api is not None and getattr(api, "is_available", bool)():
            count = getattr(api, "device_count", lambda: 1)()
            name = getattr(api, "get_device_name", str)
            found[kind] = [str(name(index)) for index in range(count)]
    activities = sorted(activity.name for activity in module.profiler.supported_activities())
    state["devices"], state["activities"] = found, activities
    return {"devices": found, "activities": activities}


def cpu_capture(state: dict[str, Any]) -> dict[str, Any]:
    """Record one operation on the CPU, and check that it is in the trace."""
    return {"events": _capture(state, "cpu")}


def device_capture(state: dict[str, Any]) -> dict[str, Any]:
    """Record one kernel. CUPTI and similar libraries report conflicts here."""
    kind = next((kind for kind in ("cuda", "xpu") if kind in state["devices"]), None)
    if kind is None:
        return {"device": None}
    return {"device": kind, "events": _capture(state, kind)}


def memory(state: dict[str, Any]) -> dict[str, Any]:
    """Keep the history of CUDA's allocator for one tensor."""
    module = state["torch"]
    if not (module.version.cuda or getattr(module.version, "hip", None)):
        return {"build": False}
    found = {"build": True, "devices": module.cuda.device_count()}
    if not found["devices"]:
        return found
    found["allocator"] = module.cuda.memory.get_allocator_backend()
    if found["allocator"] != "native":
        return found
    module.cuda.init()
    module.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=100)
    try:
        module.ones(1024, device="cuda")
        traces = module.cuda.memory._snapshot()["device_traces"]
    finally:
        module.cuda.memory._record_memory_history(None)
    found["entries"] = sum(map(len, traces))
    found["observer"] = hasattr(module._C, "_cuda_attach_out_of_memory_observer")
    return found


def npu(_: dict[str, Any]) -> dict[str, Any]:
    """Import torch_npu, which needs CANN."""
    if importlib.util.find_spec("torch_npu") is None:
        return {"installed": False}
    import torch_npu

    return {
        "installed": True,
        "version": torch_npu.__version__,
        "available": bool(torch_npu.npu.is_available()),
    }


def _capture(state: dict[str, Any], kind: str) -> int:
    """Return the events of one small capture: operations for the CPU, kernels for a device."""
    module = state["torch"]
    wanted = {"cpu": ("CPU",), "cuda": ("CPU", "CUDA"), "xpu": ("CPU", "XPU")}[kind]
    profiler = module.profiler.profile(
        activities=[getattr(module.profiler.ProfilerActivity, name) for name in wanted],
        experimental_config=module.profiler._ExperimentalConfig(**state["options"]),
    )
    tensor = module.ones(64, 64, device=kind)
    with profiler:
        (tensor @ tensor).sum().item()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")  # noqa: PTH118 - this file imports as little as possible
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - the same
            events = json.load(file)["traceEvents"]
    category = "cpu_op" if kind == "cpu" else "kernel"
    return sum(event.get("cat") == category for event in events)


if __name__ == "__main__":
    sys.exit(main())
