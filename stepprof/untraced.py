"""Import modules on a thread that torch's profiler does not trace.

A profile with stacks (``with_stack=True``) keeps pointers to the code that ran, also to the code of module bodies, which is freed
after the import. Its end then reads freed memory, and raises UnicodeDecodeError out of the user's ``with``. torch traces only the
threads that exist when a profile starts.
"""

from __future__ import annotations

import contextvars
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

BODY = sys._getframe().f_code
"""The code of this module's body. It is kept, because the module may itself be imported inside a profile."""


def untraced(act: Callable[[], T]) -> T:
    """Return the result of a function that imports modules. While a torch profiler runs, another thread calls it.

    >>> untraced(lambda: 1)
    1
    """
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    if not getattr(profiler, "_is_profiler_enabled", False):
        return act()
    results: list[T] = []
    failures: list[BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            results.append(context.run(act))
        except BaseException as failure:  # noqa: BLE001 - raised on the caller's thread
            failures.append(failure)

    thread = threading.Thread(target=work, name="stepprof-import", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, or the interpreter is shutting down
        from stepprof.interrupts import is_of_job  # not above: this module may be imported inside a profile

        if thread.ident is not None or is_of_job(error):
            raise
        return act()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


class Reference:
    """A function for another process, which imports its module by `untraced`: that process may profile itself when it unpickles this."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._where = function.__module__, function.__qualname__

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        return function_of, self._where


def function_of(module: str, name: str) -> Any:
    """Return a function of a module.

    >>> function_of("math", "sqrt")(4)
    2.0
    """
    known = sys.modules.get(module)
    spec = getattr(known, "__spec__", None)
    if known is None or getattr(spec, "_initializing", False):
        known = untraced(lambda: importlib.import_module(module))
    return getattr(known, name)
