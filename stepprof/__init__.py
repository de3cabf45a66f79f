"""stepprof: see one step of an RL post-training job as a whole.

Three lines adopt it, and they can stay in for good::

    import stepprof

    stepprof.init("stepprof.toml")
    for step in range(1, steps + 1):
        with stepprof.profile_step(step, role="actor"):
            update_actor(batch)

Importing stepprof loads nothing heavy: what is configured, logged or written is loaded by `init`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepprof.instrument.region import bind, counter, mark, region
from stepprof.instrument.state import State
from stepprof.instrument.step import current_step, profile_step, state, tick

if TYPE_CHECKING:
    from stepprof import errors
    from stepprof.config.config import (
        Config,
        EngineOptions,
        MemoryOptions,
        NpuOptions,
        NsysOptions,
        OtelOptions,
        RolePolicy,
        Schedule,
        TorchOptions,
        WatchOptions,
    )
    from stepprof.recording.lifecycle import init, shutdown
    from stepprof.recording.session import Session
    from stepprof.remote.attach import Engine, attach, detach
    from stepprof.run.trigger import trigger

__version__ = "0.2.0"

__all__ = [
    "Config",
    "Engine",
    "EngineOptions",
    "MemoryOptions",
    "NpuOptions",
    "NsysOptions",
    "OtelOptions",
    "RolePolicy",
    "Schedule",
    "Session",
    "State",
    "TorchOptions",
    "WatchOptions",
    "attach",
    "bind",
    "counter",
    "current_step",
    "detach",
    "errors",
    "init",
    "mark",
    "profile_step",
    "region",
    "shutdown",
    "state",
    "tick",
    "trigger",
]

_LAZY = {
    **dict.fromkeys(("init", "shutdown"), "stepprof.recording.lifecycle"),
    "Session": "stepprof.recording.session",
    "trigger": "stepprof.run.trigger",
    **dict.fromkeys(("Engine", "attach", "detach"), "stepprof.remote.attach"),
    **dict.fromkeys(
        (
            "Config",
            "EngineOptions",
            "MemoryOptions",
            "NpuOptions",
            "NsysOptions",
            "OtelOptions",
            "RolePolicy",
            "Schedule",
            "TorchOptions",
            "WatchOptions",
        ),
        "stepprof.config.config",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("stepprof.errors")
    if name not in _LAZY:
        raise AttributeError(f"module 'stepprof' has no attribute {name!r}")
    value = _load(name)
    if name == "init":
        _load_all()
    return value


def _load(name: str) -> object:
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def _load_all() -> None:
    """Be a module like any other from `init` on: while a module has a ``__getattr__``, CPython specialises no look-up in it.

    That look-up costs every ``stepprof.region`` 30 ns otherwise, a tenth of the block (3.11).
    """
    importlib.import_module("stepprof.errors")
    for name in _LAZY:
        _load(name)
    globals().pop("__getattr__", None)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
