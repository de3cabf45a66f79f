"""Say whose code a stack is in (the job's own, or that of torch's compiler), and which task its thread runs: the
function that a pool or `threading.Thread` runs on it.
"""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from types import CodeType
from typing import NamedTuple

_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}
_COMPILER = (
    *("torch/_dynamo/convert_frame.py", "torch/_dynamo/symbolic_convert.py"),
    *("torch/_subclasses/fake_tensor.py", "torch/fx/experimental/proxy_tensor.py"),
    *(f"torch/_inductor/{name}.py" for name in ("graph", "scheduler", "async_compile")),
)
"""Modules of torch.compile that do nothing when a function that is compiled already is called (torch 2.13).

Calls of compiled functions pass through `eval_frame`, `runtime_wrappers` and `output_code`.
"""
_STANDARD = Path(threading.__file__).parent
_THREADS = threading.Thread.run.__code__.co_filename
_POOLS = {
    str(_STANDARD / "concurrent/futures/thread.py"): "_worker",
    str(_STANDARD / "multiprocessing/pool.py"): "worker",
}
"""The function in which the threads of each pool work. Other threads of a pool pass on tasks and results."""
_STEPPROF = str(Path(__file__).parents[2])


def caller_of(stack: Iterable[tuple[CodeType, int]]) -> tuple[CodeType, int] | None:
    """Return the innermost frame of a file that is neither installed nor of the standard library; None: the stack has none."""
    return next((frame for frame in stack if is_own(frame[0].co_filename)), None)


def is_compiling(stack: Iterable[tuple[CodeType, int]]) -> bool:
    """Return whether torch.compile works on a function, or waits for its C++ or Triton compiler."""
    return any(_is_compiler(code.co_filename) for code, _ in stack)


@lru_cache(maxsize=10_000)
def is_own(file: str) -> bool:
    """Return whether a file is neither installed nor of the standard library."""
    return not (file.startswith(("<", _LIBRARY)) or _INSTALLED.intersection(PurePath(file).parts))


@lru_cache(maxsize=10_000)
def _is_compiler(file: str) -> bool:
    return PurePath(file).as_posix().endswith(_COMPILER)


class Task(NamedTuple):
    """What a thread runs."""

    name: str
    pool: bool
    """A thread pool runs it."""


def task_of(stack: Sequence[CodeType]) -> Task | None:
    """Return the task of a thread by the codes of its stack, the innermost first. None: it has none now, its
    stack is not known down to its first call, or an installed package runs the thread without a pool.
    """
    if not stack or stack[-1].co_filename != _THREADS:
        return None
    pool = False
    for code in reversed(stack):
        file = code.co_filename
        if file == _THREADS or file.startswith(_STEPPROF):
            continue
        if file not in _POOLS:
            known = pool or not _INSTALLED.intersection(PurePath(file).parts)
            return Task(getattr(code, "co_qualname", code.co_name), pool) if known else None
        if not pool and code.co_name != _POOLS[file]:
            return None
        pool = True
    return None  # it waits for a task, or runs a function of C
