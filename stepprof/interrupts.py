"""Tell the job's exceptions that interrupt stepprof from the failures of stepprof's own work.

A signal handler of the job may raise between any two instructions of the main thread, for example a time-out around a reward
function. Another thread may send an exception (``PyThreadState_SetAsyncExc``). Such an exception belongs to the job, although it
appears inside a call of stepprof. So code on the training thread catches with ``except ours(Exception)`` instead of
``except Exception``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from opcode import opmap
from queue import Empty
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

_PYTHON = frozenset(sys.stdlib_module_names)
_KNOWN = _PYTHON | {
    "stepprof", "torch", "torch_npu", "structlog", "transitions", "wrapt", "gevent", "greenlet", "eventlet",
    "fsspec", "isal", "msgspec", "numpy", "nvtx", "opentelemetry", "packaging", "pyarrow", "ray", "tomli",
}  # fmt: skip
"""Modules that stepprof calls. A sent exception may interrupt their code, and their own exceptions are not the job's, although C
code raises some of them without a frame of its own.
"""

_RAISES = {
    opmap[name]
    for name in (
        "RAISE_VARARGS",
        "RERAISE",
        "SEND",
        "YIELD_FROM",
        "YIELD_VALUE",
        "JUMP_BACKWARD_NO_INTERRUPT",
    )
    if name in opmap
}
"""Instructions that raise a given exception: of a statement, or of what is awaited. Python delivers a sent exception at none of them."""
_RESUME, _AFTER_AWAIT = opmap.get("RESUME"), 2
_BARE = (MemoryError, StopIteration, StopAsyncIteration, EOFError, Empty)
"""Exceptions that C code raises without arguments."""


def ours(*kinds: type[E]) -> tuple[type[E], ...]:
    """Return these classes for an ``except`` clause; none of them if the exception that is handled is the job's.

    >>> try:
    ...     raise OSError("no space left")
    ... except ours(OSError):
    ...     print("handled")
    handled
    """
    error = sys.exc_info()[1]
    return () if error is None or is_of_job(error) else kinds


class ignored(contextlib.suppress):  # noqa: N801 - a block, named like the one that it extends
    """Suppress exceptions of these classes, except those of the job.

    >>> with ignored(OSError):
    ...     raise OSError("no space left")
    """

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is not None and is_of_job(error):
            return False
        return bool(super().__exit__(kind, error, traceback))


def is_interrupt(error: BaseException) -> bool:
    """Return whether it must reach the job: it is no `Exception`, as KeyboardInterrupt, or it is the job's.

    >>> is_interrupt(KeyboardInterrupt()), is_interrupt(OSError("no space left"))
    (True, False)
    """
    return not isinstance(error, Exception) or is_of_job(error)


def is_of_job(error: BaseException) -> bool:
    """Return whether the exception comes from a signal handler or a trace function, or was sent to this thread."""
    handlers: set[CodeType] | None = None
    traceback = error.__traceback__
    innermost: TracebackType | None = None
    while traceback is not None:
        innermost = traceback
        frame = traceback.tb_frame
        if _has_caller_as_argument(frame):
            return True
        if handlers is None:
            handlers = _handlers()
        if frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return innermost is not None and _was_sent(error, innermost)


def _has_caller_as_argument(frame: FrameType) -> bool:
    """Return whether a function got the frame that it interrupted: a signal handler, a trace or profile function."""
    caller, code = frame.f_back, frame.f_code
    if caller is None or code.co_argcount + bool(code.co_flags & 4) == 0:
        return False
    for value in frame.f_locals.values():
        if value is caller or (type(value) is tuple and any(each is caller for each in value)):
            return True
    return False


def _handlers() -> set[CodeType]:
    """Return the code of the installed signal handlers."""
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if callable(handler):
            function = getattr(handler, "func", handler)  # functools.partial
            code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
            if code is not None:
                found.add(code)
    return found


def _was_sent(error: BaseException, innermost: TracebackType) -> bool:
    """Return whether another thread has sent the exception to this one: no code has raised it.

    It appears in a known module, between two instructions. It has a class of the job; or one of
    Python without arguments, because the interpreter makes it from its class.
    """
    code, at = innermost.tb_frame.f_code.co_code, innermost.tb_lasti
    if not 0 <= at < len(code):  # the frame of a Cython function
        return False
    if code[at] in _RAISES or (code[at] == _RESUME and code[at + 1] & 3 >= _AFTER_AWAIT):
        return False
    if _top(innermost.tb_frame.f_globals.get("__name__")) not in _KNOWN:
        return False
    made_in = _top(type(error).__module__)
    return made_in not in _KNOWN or (made_in in _PYTHON and not error.args and not isinstance(error, _BARE))


def _top(module: object) -> str:
    return str(module).partition(".")[0]
