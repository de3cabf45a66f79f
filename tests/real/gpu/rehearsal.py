"""Run the tests of this folder on a machine without a GPU:
``PYTHONPATH=tests/helpers:tests/real/gpu python -m pytest -p rehearsal
tests/real/gpu/test_gpu.py``. They run completely, on the CPU and with a replacement for CUDA's
allocator. So the tests themselves have been executed before they run on a card. They do not show
the behaviour of a card.
"""

from __future__ import annotations

from collections.abc import Iterator

import cudamemory
import gpu
import pytest

CPU = gpu.Device("cpu", kernels="cpu_op", launch="aten::mm", ranges="user_annotation")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace the device by the CPU, and CUDA's allocator by the stand-in."""
    import torch

    allocator = cudamemory.install(monkeypatch)
    for name in ("init", "synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(gpu, "DEVICE", CPU)
    with cudamemory.tensors_of(allocator):
        yield
