"""Name the task of a thread: the function that a pool or `threading.Thread` runs on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_LIBRARY = Path(threading.__file__).parent
_THREADS = threading.Thread.run.__code__.co_filename
_POOLS = {
    str(_LIBRARY / "concurrent/futures/thread.py"): "_worker",
    str(_LIBRARY / "multiprocessing/pool.py"): "worker",
}
"""The function in which the threads of each pool work. Other threads of a pool pass on tasks and results."""
_OWN = str(Path(__file__).parents[2])
_INSTALLED = ("site-packages", "dist-packages")


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
        if file == _THREADS or file.startswith(_OWN):
            continue
        if file not in _POOLS:
            known = pool or not any(part in _INSTALLED for part in Path(file).parts)
            return Task(getattr(code, "co_qualname", code.co_name), pool) if known else None
        if not pool and code.co_name != _POOLS[file]:
            return None
        pool = True
    return None  # it waits for a task, or runs a function of C
