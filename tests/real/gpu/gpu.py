"""Describe the device of the tests in this folder, and the reason if they cannot run on this machine."""

from __future__ import annotations

from dataclasses import dataclass

NO_DEVICE = "no CUDA device"


@dataclass(frozen=True)
class Device:
    """The name of the device in torch, and the names of its events in a trace."""

    name: str
    kernels: str
    """The category of the kernels that ran on the device."""
    launch: str
    """The call with which a thread of the host launches a kernel."""
    ranges: str
    """The category of a region's range on the lanes of the device."""


DEVICE = Device("cuda", kernels="kernel", launch="cudaLaunchKernel", ranges="gpu_user_annotation")


def obstacle() -> str | None:
    """Return the reason for which the tests on a GPU are skipped. Raise ImportError if torch is
    missing.
    """
    import torch

    return None if torch.cuda.device_count() else NO_DEVICE
