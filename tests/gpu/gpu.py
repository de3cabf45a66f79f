"""Why nothing here can run on this machine; a torch that is missing is no such reason."""

from __future__ import annotations

NO_DEVICE = "no CUDA device"


def obstacle() -> str | None:
    """The reason for which the tests on a GPU are skipped. Raises ImportError where torch is missing."""
    import torch

    return None if torch.cuda.device_count() else NO_DEVICE
