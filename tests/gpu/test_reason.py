"""The tests of this folder are skipped for one reason alone, and it is told."""

from __future__ import annotations

import sys

import gpu
import pytest

from benchmarks import devices
from benchmarks import gpu as benchmark


@pytest.mark.torch
def test_the_reason_is_the_device() -> None:
    """Where torch sees one, nothing is skipped; where it sees none, that is the reason."""
    import torch

    assert gpu.obstacle() == (None if torch.cuda.is_available() else "no CUDA device")


def test_a_missing_torch_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of the installation, and fails."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError):
        gpu.obstacle()


@pytest.mark.torch
def test_the_benchmark_says_so_too() -> None:
    """Its rows are of a GPU, or there are none; a region's of the memory backend as well."""
    import torch

    if torch.cuda.is_available():
        return
    assert benchmark._told("null", quick=True) == {"absent": "no CUDA device"}
    assert "has no CUDA" in str(devices._measured("memory", quick=True)["absent"])


@pytest.mark.torch
def test_the_benchmark_runs() -> None:
    """On the CPU, where its figures mean nothing: what it does on a GPU is the same."""
    rows = {row.name: row for row in benchmark.measured("torch, export in a child", quick=True, device="cpu")}
    assert rows["artifacts"].value > 0
    assert rows["training stands still"].value > 0
    assert rows["step, recorded"].ratio is not None


def test_a_region_of_each_mode() -> None:
    """Off, armed and recording, each in the state that it says."""
    told = devices._measured("null", quick=True)
    groups = {row["group"] for row in told["rows"]}  # type: ignore[attr-defined]
    assert groups == {f"region, backend null, {mode}" for mode in devices.MODES.values()}
