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

from stepprof.region import bind, counter, mark, region
from stepprof.status import State
from stepprof.step import profile_step, state, tick

if TYPE_CHECKING:
    from stepprof import errors
    from stepprof.config import (
        Config,
        EngineOptions,
        MemoryOptions,
        NpuOptions,
        NsysOptions,
        RolePolicy,
        Schedule,
        TorchOptions,
    )
    from stepprof.session import Session
    from stepprof.startup import init, shutdown

__version__ = "0.1.0"

__all__ = [
    "Config",
    "EngineOptions",
    "MemoryOptions",
    "NpuOptions",
    "NsysOptions",
    "RolePolicy",
    "Schedule",
    "Session",
    "State",
    "TorchOptions",
    "bind",
    "counter",
    "errors",
    "init",
    "mark",
    "profile_step",
    "region",
    "shutdown",
    "state",
    "tick",
]

_LAZY = {
    **dict.fromkeys(("init", "shutdown"), "stepprof.startup"),
    "Session": "stepprof.session",
    **dict.fromkeys(
        (
            "Config",
            "EngineOptions",
            "MemoryOptions",
            "NpuOptions",
            "NsysOptions",
            "RolePolicy",
            "Schedule",
            "TorchOptions",
        ),
        "stepprof.config",
    ),
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("stepprof.errors")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'stepprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
