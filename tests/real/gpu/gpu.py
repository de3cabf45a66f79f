"""What the tests of this folder run on, and why nothing here can run on this machine; a torch that is missing is no such reason."""

from __future__ import annotations

from dataclasses import dataclass

NO_DEVICE = "no CUDA device"


@dataclass(frozen=True)
class Device:
    """The name of the device in torch, and its events in a trace."""

    name: str
    kernels: str
    """The category of what ran on it."""
    launch: str
    """What a thread of the host calls to have something run."""
    ranges: str
    """The category of a region's range among its lanes."""


DEVICE = Device("cuda", kernels="kernel", launch="cudaLaunchKernel", ranges="gpu_user_annotation")


def obstacle() -> str | None:
    """The reason for which the tests on a GPU are skipped. Raises ImportError where torch is missing."""
    import torch

    return None if torch.cuda.device_count() else NO_DEVICE
