"""The backends by name: those of stepprof, and plug-ins from the entry-point group ``stepprof.backends``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepprof.backends.base import Backend
from stepprof.config.plugins import BUILT_IN, GROUP
from stepprof.errors import BackendError, ConfigError, shown
from stepprof.interrupts import ignored

if TYPE_CHECKING:
    from stepprof.config.config import Policy

__all__ = ["check_plugins", "make_backend"]

_HERE = {
    "memory": ("stepprof.backends.memory.backend", "MemoryBackend"),
    "null": ("stepprof.backends.null", "NullBackend"),
    "npu": ("stepprof.backends.npu.backend", "NpuBackend"),
    "nsys": ("stepprof.backends.nsys.backend", "NsysBackend"),
    "torch": ("stepprof.backends.torch.backend", "TorchBackend"),
}


def make_backend(policy: Policy) -> Backend:
    """Make the backend of a policy, with its options. Raises BackendError if it is not installed or not a `Backend`."""
    parts = [_made(name, policy.options(name)) for name in policy.backend]
    if len(parts) == 1:
        return parts[0]
    from stepprof.backends.composite import Together

    return Together(parts)


def check_plugins(names: Iterable[str]) -> None:
    """Raise ConfigError for a plug-in that breaks the contract of `stepprof.backends.base.Backend`. Built-in names are not loaded.

    A plug-in that cannot be imported passes: what a process lacks is reported when the backend is probed.
    """
    for name in names:
        problem = None
        if name not in BUILT_IN:
            with ignored(Exception):
                problem = _problem(_factory(name))
        if problem is not None:
            raise ConfigError.at("backend", name, problem)


def _made(name: str, options: object) -> Backend:
    factory = _factory(name)
    problem = _problem(factory)
    made = None if problem else factory(options)
    if isinstance(made, Backend):
        return made
    problem = problem or f"{factory!r} returned {made!r}; must return a stepprof.backends.base.Backend"
    raise BackendError(f"backend = {shown(name)}: {problem}")


def _problem(factory: object) -> str | None:
    """Return what a class lacks of the contract. What a function returns is only known when it is called."""
    if not isinstance(factory, type):
        return None
    where = f"{factory.__module__}.{factory.__qualname__}"
    if not issubclass(factory, Backend):
        return f"{where} must derive from stepprof.backends.base.Backend"
    missing = sorted(getattr(factory, "__abstractmethods__", ()))
    return f"{where} must define {', '.join(missing)}" if missing else None


def _factory(name: str) -> Callable[[Any], object]:
    if name in _HERE:
        module, attribute = _HERE[name]
        found: Callable[[Any], object] = getattr(import_module(module), attribute)
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        loaded: Callable[[Any], object] = entry.load()
        return loaded
    if name in BUILT_IN:
        raise BackendError(f'backend = "{name}": not in this version of stepprof, which records with torch')
    raise BackendError(f'backend = "{name}": no installed package offers it (entry-point group {GROUP})')
