"""The backends by name: those of stepprof and those that plug-ins name in the entry-point group ``stepprof.backends``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from stepprof.config.plugins import BUILT_IN, GROUP
from stepprof.errors import BackendError

if TYPE_CHECKING:
    from stepprof.backends.base import Backend
    from stepprof.config.config import Policy

__all__ = ["make_backend"]

_HERE = {
    "memory": ("stepprof.backends.memory.backend", "MemoryBackend"),
    "null": ("stepprof.backends.null", "NullBackend"),
    "npu": ("stepprof.backends.npu.backend", "NpuBackend"),
    "nsys": ("stepprof.backends.nsys.backend", "NsysBackend"),
    "torch": ("stepprof.backends.torch.backend", "TorchBackend"),
}


def make_backend(policy: Policy) -> Backend:
    """The backend that a policy asks for, with its options. Raises BackendError where this installation has none such."""
    parts = [cast("Backend", _factory(name)(policy.options(name))) for name in policy.backend]
    if len(parts) == 1:
        return parts[0]
    from stepprof.backends.composite import Together

    return cast("Backend", Together(parts))


def _factory(name: str) -> Callable[[Any], object]:
    if name in _HERE:
        module, attribute = _HERE[name]
        return cast("Callable[[Any], object]", getattr(import_module(module), attribute))
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        return cast("Callable[[Any], object]", entry.load())
    if name in BUILT_IN:
        raise BackendError(f'backend = "{name}": not in this version of stepprof, which records with torch')
    raise BackendError(f'backend = "{name}": no installed package offers it (entry-point group {GROUP})')
