"""Run the torch probe in a separate process under a time limit, and describe its results.

Each problem has a remedy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.doctor import torch_child
from stepprof.doctor.finding import Finding
from stepprof.doctor.memory import memory_findings

__all__ = ["torch_findings"]

_INSTALL = 'pip install "stepprof[torch]"'
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_CANN = "install the matching CANN and source its set_env.sh, or pip uninstall torch_npu; TORCH_DEVICE_BACKEND_AUTOLOAD=0 imports torch without it"
_STAGES = {
    "isal": "importing isal",
    "torch": "importing torch",
    "options": "asking for profiler options",
    "devices": "looking for accelerators",
    "cpu_capture": "recording on the CPU",
    "device_capture": "recording on the accelerator",
    "memory": "keeping the history of CUDA's allocator",
    "npu": "importing torch_npu",
}


@dataclass(frozen=True, slots=True)
class _Run:
    stages: Mapping[str, Mapping[str, Any]]
    begun: str | None
    ending: str | None
    last_words: str


def torch_findings(environ: Mapping[str, str], timeout: float) -> list[Finding]:
    """Try torch for at most `timeout` seconds (twice that if it must be tried again without
    extensions).
    """
    run = _probe(environ, timeout)
    error = str(run.stages.get("torch", {}).get("error", ""))
    if "backend extension" not in error:
        return list(_described(run))
    broken = _extension(error)
    rest = _described(_probe({**environ, _AUTOLOAD: "0"}, timeout))
    return [broken, *(finding for finding in rest if finding.name != broken.name)]


def _probe(environ: Mapping[str, str], timeout: float) -> _Run:
    """Run the probe's source outside the current folder, whose files could be mistaken for modules."""
    text = Path(torch_child.__file__).read_text(encoding="utf-8")
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        process = subprocess.Popen(  # noqa: S603 - this Python, with a program of ours
            [sys.executable, "-c", text],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
            ending = None if status == 0 else _describe_status(status)
        except subprocess.TimeoutExpired:
            _kill(process)
            ending = f"did not end within {timeout:g} s"
        out.seek(0)
        err.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
        words = err.read().decode(errors="replace").strip().splitlines()
    stages: dict[str, Mapping[str, Any]] = {}
    begun = None
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:  # output of the imported modules
            continue
        if isinstance(content, dict):
            begun = content.get("begin", begun)
            if "stage" in content:
                stages[content["stage"]] = content
    return _Run(stages, begun, ending, words[-1][:300] if words else "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Stop the probe and all processes that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


def _describe_status(status: int) -> str:
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def _described(run: _Run) -> Iterator[Finding]:
    stages = run.stages
    if run.ending is not None:
        words = f": {run.last_words}" if run.last_words else ""
        yield Finding(
            "torch",
            "problem",
            f"a process that was {_STAGES.get(str(run.begun), 'starting')} {run.ending}{words}",
            "try the same in a Python shell, or raise --timeout",
        )
    yield from _torch(stages.get("torch"))
    yield from _options(stages.get("options"))
    yield from _devices(stages.get("devices"))
    yield from _cpu_capture(stages.get("cpu_capture"))
    yield from _device_capture(stages.get("device_capture"))
    yield from memory_findings(stages.get("memory"))
    yield from _npu(stages.get("npu"))
    yield from _isal(stages.get("isal"))


def _extension(error: str) -> Finding:
    if "torch_npu" in error:
        return Finding("torch_npu", "problem", f"import torch fails: {error}", _CANN)
    return Finding(
        "torch extension",
        "problem",
        f"import torch fails: {error}",
        f"repair or uninstall the extension; {_AUTOLOAD}=0 imports torch without it",
    )


def _torch(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None:
        return
    if "error" in found:
        yield Finding(
            "torch", "problem", f"import torch fails: {found['error']}", f"reinstall torch: {_INSTALL}"
        )
    elif not found["installed"]:
        yield Finding(
            "torch",
            "warning",
            'not installed: backend = "torch" cannot record; spans are still recorded',
            _INSTALL,
        )
    else:
        build = f"built for {found['cuda_build']}" if found["cuda_build"] else "CPU build"
        yield Finding("torch", "ok", f"{found['version']}, {build} ({found['path']})")


def _options(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None:
        return
    if "error" in found:
        yield Finding(
            "torch options",
            "warning",
            f"query failed: {found['error']}",
            "a newer torch is needed to record all threads",
        )
        return
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
    if found["trace_only"]:
        yield Finding("trace_only", "ok", "supported: stopping a capture takes a third less time")
    else:
        yield Finding(
            "trace_only",
            "ok",
            "not supported by this torch: stopping a capture takes 1.5 times as long (torch 2.13 supports it)",
        )


def _devices(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None:
        return
    if "error" in found:
        yield Finding(
            "accelerators",
            "problem",
            f"detection failed: {found['error']}",
            "check the driver (nvidia-smi, npu-smi info)",
        )
        return
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


def _cpu_capture(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None:
        return
    if "error" in found:
        yield Finding(
            "cpu capture",
            "problem",
            f"a small capture fails: {found['error']}",
            f"reinstall torch: {_INSTALL}",
        )
    elif not found["events"]:
        yield Finding("cpu capture", "problem", "a small capture is empty", f"reinstall torch: {_INSTALL}")
    else:
        yield Finding("cpu capture", "ok", f"a small capture has {found['events']} operations")


def _device_capture(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None or ("device" in found and found["device"] is None):
        return
    if "error" in found:
        yield Finding(
            "kernel capture",
            "problem",
            f"a small capture fails: {found['error']}",
            "check the line about cupti, and whether another profiler uses this GPU",
        )
    elif not found["events"]:
        yield Finding(
            "kernel capture",
            "problem",
            f"a small capture on {found['device']} has no kernel",
            "another tool is subscribed to CUPTI (see the line about cupti; a monitoring agent; a debugger), or libcupti does not match the driver",
        )
    else:
        yield Finding("kernel capture", "ok", f"a small capture has {found['events']} kernels")


def _npu(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None or found.get("installed") is False:
        return
    if "error" in found:
        yield Finding("torch_npu", "problem", f"import torch_npu fails: {found['error']}", _CANN)
    elif not found["available"]:
        yield Finding(
            "torch_npu",
            "warning",
            f"{found['version']}, but no NPU is present",
            "check npu-smi info for what the driver detects",
        )
    else:
        yield Finding("torch_npu", "ok", str(found["version"]))


def _isal(found: Mapping[str, Any] | None) -> Iterator[Finding]:
    if found is None:
        return
    if "error" in found:
        yield Finding(
            "isal", "warning", f"cannot be imported: {found['error']}", "pip install --force-reinstall isal"
        )
    elif not found["installed"]:
        yield Finding(
            "isal",
            "warning",
            "not installed: traces are compressed with zlib, about four times slower",
            _INSTALL,
        )
    else:
        yield Finding("isal", "ok", "traces are compressed with igzip")
