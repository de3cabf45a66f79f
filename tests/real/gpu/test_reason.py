"""Test that the tests of this folder are skipped only without a device, and that the reason is
printed.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import gpu
import pytest
from cudamemory import Allocator

from benchmarks import devices
from benchmarks import gpu as benchmark
from benchmarks.apart import ask_a_card


@pytest.mark.torch
def test_the_reason_is_the_device() -> None:
    """If torch sees a device, no test is skipped. If it sees none, that is the reason."""
    import torch

    assert gpu.obstacle() == (None if torch.cuda.is_available() else "no CUDA device")


def test_a_missing_torch_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing torch is an error of the installation and fails."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError):
        gpu.obstacle()


@pytest.mark.torch
def test_the_benchmark_needs_a_device_too() -> None:
    """Without a device, the benchmarks of the GPU and of regions have no rows, and state the
    reason.
    """
    import torch

    if torch.cuda.is_available():
        return
    assert benchmark._measured("null", quick=True) == {"absent": "no CUDA device"}
    assert benchmark.measure_gpu(quick=True) == ([], {"gpu": "no CUDA device"})
    for backend in ("memory", "torch+memory"):
        assert "has no CUDA" in str(devices._measured(backend, quick=True)["absent"])


@pytest.mark.torch
def test_failures_on_a_card_are_reported(rehearsed: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case that fails on a card has its reason instead of rows."""
    monkeypatch.setitem(benchmark.CASES, "broken", {"backend": "nothing"})
    reported = benchmark._measured("broken", quick=True)
    assert reported.keys() == {"absent"}
    assert re.match(r"\w+Error: \w", str(reported["absent"]))
    assert ask_a_card("benchmarks.gpu", "null", "1", timeout=0.01) == ([], "no end after 0.01 s")
    rows, reason = ask_a_card("benchmarks.gpu", "no such case", timeout=200)
    assert rows == []
    assert str(reason).startswith("its process died: IndexError")


def test_a_trace_without_kernels_gives_no_figure(tmp_path: Path) -> None:
    """A trace with kernels is accepted. A trace without kernels raises RuntimeError."""
    trace = tmp_path / "step-000002" / "actor" / "rank-0.trace.json.gz"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(gzip.compress(b'{"traceEvents": [{"cat": "kernel"}]}'))
    benchmark._look_for_kernels(tmp_path)
    trace.write_bytes(gzip.compress(b'{"traceEvents": [{"cat": "cpu_op"}]}'))
    with pytest.raises(RuntimeError, match="no kernels"):
        benchmark._look_for_kernels(tmp_path)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("nothing that is known\n", "unknown"),
        (None, "unknown"),
    ],
)  # fmt: skip
def test_the_driver(tmp_path: Path, text: str | None, version: str) -> None:
    """The version of the driver is read from the file, and is "unknown" if it cannot be found."""
    path = tmp_path / "version"
    if text is not None:
        path.write_text(text)
    assert benchmark._driver(path) == version


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["null", "memory", "torch+memory"])
def test_a_region_of_each_mode(rehearsed: Allocator, backend: str) -> None:
    """Each backend measures a region off, armed and recording, and leaves the history off."""
    reported = devices._measured(backend, quick=True)
    groups = {row["group"] for row in reported["rows"]}  # type: ignore[attr-defined]
    assert groups == {f"region, backend {backend}, {mode}" for mode in devices.MODES.values()}
    assert not rehearsed.on
