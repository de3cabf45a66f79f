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
import sys
from typing import TYPE_CHECKING, Any

from stepprof.untraced import untraced

_BODY = sys._getframe().f_code  # see stepprof.untraced: this module may be imported inside a profile
for _part in ("host", "instrument", "instrument.step", "instrument.region", "instrument.state", "version"):
    # the folders first: an import statement that loads its folder would wait for the end of this module's own import
    untraced(lambda part=_part: importlib.import_module(f"stepprof.{part}"))  # type: ignore[misc]

from stepprof.instrument.region import bind, counter, mark, region  # noqa: E402 - as above
from stepprof.instrument.state import State  # noqa: E402
from stepprof.instrument.step import current_step, profile_step, state, tick  # noqa: E402
from stepprof.version import VERSION  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from stepprof import errors
    from stepprof.analysis.data.run import Run
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
    from stepprof.instrument.requests import mark_request
    from stepprof.recording.lifecycle import init, shutdown
    from stepprof.recording.session import Session
    from stepprof.remote.attach import Engine, attach, detach
    from stepprof.run.trigger import trigger

__version__ = VERSION

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
    "mark_request",
    "open_run",
    "profile_step",
    "region",
    "shutdown",
    "state",
    "tick",
    "trigger",
]

_LAZY = {
    **dict.fromkeys(("init", "shutdown"), "stepprof.recording.lifecycle"),
    "mark_request": "stepprof.instrument.requests",
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


def open_run(*paths: str | Path, output_dir: str | Path | None = None) -> Run:
    """Open a recorded run for pandas, Polars, DuckDB or a script. Needs the extra ``data``.

    Args:
        paths: a run id or the path of a run. Several: the directories of one run, copied from nodes
            without a shared disk. None: the newest run. Or traces that stepprof did not record: files, or folders of them.
        output_dir: the folder of the runs; None: ``$STEPPROF_OUTPUT_DIR``, else ``stepprof-runs``.

    Returns:
        The run: tables of its steps and spans, and its recorded steps with their slices, engines and report.

    Raises:
        ConfigError: there is no such run, the directories are of several runs, a file is no trace, or the extra
            ``data`` is not installed.

    >>> run = stepprof.open_run("stepprof-runs/demo-1")  # doctest: +SKIP
    >>> polars.DataFrame(run.steps)  # doctest: +SKIP
    """
    from stepprof.analysis.data.run import Run

    return Run.of(*paths, output_dir=output_dir)


def __getattr__(name: str) -> Any:
    if name == "errors":
        return untraced(lambda: importlib.import_module("stepprof.errors"))
    if name not in _LAZY:
        raise AttributeError(f"module 'stepprof' has no attribute {name!r}")
    value = untraced(lambda: _load(name))
    if name == "init":
        untraced(_load_all)
    return value


def _load(name: str) -> object:
    value: object = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def _load_all() -> None:
    """Remove ``__getattr__`` once `init` has loaded everything. CPython does not specialise
    look-ups in a module that has one; it costs every ``stepprof.region`` 30 ns, a tenth of the
    block (3.11).
    """
    importlib.import_module("stepprof.errors")
    for name in _LAZY:
        _load(name)
    globals().pop("__getattr__", None)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
