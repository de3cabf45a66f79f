"""Run the tests and benchmarks of GPUs once on the CPU. This shows that they run to their last
line, not the behaviour of a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cudamemory import Allocator

from benchmarks import gpu as benchmark


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_tests_of_a_gpu_run() -> None:
    """With the CPU and a stand-in for CUDA's allocator, each test runs to its last line and passes."""
    tests = Path(__file__).parent.parent
    folder = tests / "real" / "gpu"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "rehearsal", "-p", "no:cacheprovider", str(folder / "test_gpu.py")]  # fmt: skip
    paths = os.pathsep.join(
        [str(folder), str(tests / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("nsys is not on PATH" in line for line in skipped), skipped


@pytest.mark.torch
@pytest.mark.parametrize("case", benchmark.CASES)
def test_the_benchmark_runs(rehearsed: Allocator, case: str) -> None:
    """Each case runs on the CPU, where its figures mean nothing."""
    rows = {row.name: row for row in benchmark.measured(case, quick=True, device="cpu")}
    assert (rows["artifacts"].value > 0) == (case != "null")
    assert rows["training stands still"].value > 0
    assert rows["step, recorded"].ratio is not None
