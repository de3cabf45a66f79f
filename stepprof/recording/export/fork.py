"""Run a job in a forked child without harm to the training process.

A fork is the only way past the GIL that already has the captured events in its memory. The forked
copy of a training process obeys these rules:

* It runs no user code except hooks of `os.register_at_fork`: no garbage collection, no atexit, no signal handler. It always
  leaves by the system's own exit: tools replace `os._exit` (Scalene by `sys.exit`), and an exception would unwind the job's frames.
* It closes all sockets: if the job dies, its peers notice at once, and its ports are free.
* If memory runs out, the kernel kills the child and not the job. If the parent dies, the child still finishes its file, or ends after `LIFE_SECONDS`.
* Ray kills the child processes of a worker that ends, and its group of processes. There the work runs in a child of the child: one that
  has lost its parent, in a session of its own.
* Python 3.12 and later warn of a fork in a process with threads. As an error, that warning would lose the pid of the child.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from stepprof.host.process_identity import process_start
from stepprof.host.system_calls import signals, system
from stepprof.interrupts import is_interrupt
from stepprof.recording.export.held_handlers import handlers_held

LIFE_SECONDS = 900
"""The kernel ends a child after this, also one that hangs and has lost its parent."""

Send = Callable[[object], None]
"""Sends a line of JSON to the parent; an empty line follows when the work has ended."""

# these must not end the child in the middle of its file
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")

RUNNING = object()
UNKNOWN = object()


@contextlib.contextmanager
def signals_held() -> Iterator[set[int]]:
    """Block every signal of this thread, and hold back the handlers of the job, until the block ends: right after the fork
    this thread would run a handler in the child. Yield the mask to restore.

    What another thread sends to this one (``PyThreadState_SetAsyncExc``) may be raised in a hook of `os.register_at_fork`, where Python drops it;
    the end of this block raises it instead.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main thread alone
        with _blocked() as before:
            yield before
        return
    dropped: list[BaseException] = []
    hook = sys.unraisablehook

    def keep(args: sys.UnraisableHookArgs) -> None:
        error = args.exc_value
        if error is not None and is_interrupt(error.with_traceback(args.exc_traceback)):
            dropped.append(error)
        else:
            hook(args)

    sys.unraisablehook = keep
    try:
        with handlers_held(), _blocked() as before:
            yield before
    finally:
        sys.unraisablehook = hook
        if dropped:
            raise dropped[0]


@contextlib.contextmanager
def _blocked() -> Iterator[set[int]]:
    before = {int(number) for number in signals.pthread_sigmask(signals.SIG_BLOCK, signals.valid_signals())}
    try:
        yield before
    finally:
        signals.pthread_sigmask(signals.SIG_SETMASK, before)


def loses_children() -> bool:
    """Return whether Ray kills the children of this process when it ends (seen with Ray 2.60): this is a worker, or one has started it.

    Without /proc the end of an orphan would not be known.
    """
    return "RAY_RAYLET_PID" in os.environ and process_start(os.getpid()) is not None


def fork_for(work: Callable[[Send], None], mask: set[int], *, orphan: bool = False) -> tuple[int, int]:
    """Start a child for `work`, inside `signals_held`. Return its pid (0: it exists, but its pid was
    lost) and the pipe with its answer. With `orphan`, that child ends when it has started another one for the work.

    Raises:
        OSError: no process, memory or descriptor is left.
        RuntimeError: the interpreter is shutting down.
    """
    reader, writer = os.pipe()
    parent, pid, collects = os.getpid(), 0, gc.isenabled()
    try:
        # no finalizer of the user's objects in the child; hooks of `os.register_at_fork` may allocate there
        gc.disable()
        # for the one line below; `catch_warnings` would undo changes of other threads
        warnings.filterwarnings(
            "ignore", "This process .* is multi-threaded", DeprecationWarning, rf"{re.escape(__name__)}$"
        )
        try:
            pid = system.fork()
        except (
            DeprecationWarning
        ):  # another thread has just reset the filter: the child exists and sends its pid
            pid = 0
        if pid == 0 and os.getpid() != parent:
            _be_child(work, writer, mask, orphan)
    except BaseException:
        os.close(reader)
        raise
    finally:  # in the parent alone: the child never returns
        if collects:
            gc.enable()
        os.close(writer)
    os.set_blocking(reader, False)
    return pid, reader


def _be_child(work: Callable[[Send], None], writer: int, mask: set[int], orphan: bool) -> NoReturn:
    """Run the child. It never returns."""
    code = 70
    try:
        gc.disable()  # also if another thread of the parent has enabled it again
        _reset_signals(mask)
        if orphan:
            _lose_parent()
        _close_sockets()
        _step_back()
        work(lambda report: _write(writer, json.dumps(report).encode() + b"\n"))
        _write(writer, b"\n")
        code = 0
    except BaseException:  # noqa: BLE001 - in a forked copy of the user's program no exception may propagate; the parent sees the exit status
        code = 71
    finally:
        _leave(code)


def _lose_parent() -> None:
    """Continue in a child, and end this process. Its parent is not told before: the second fork takes as long as the first."""
    system.setsid()
    with contextlib.suppress(OSError):  # no process is left: this one works on
        if system.fork():
            _leave(0)
        signals.alarm(LIFE_SECONDS)  # a child inherits none


def _leave(code: int) -> NoReturn:
    """End this process now."""
    while True:
        with contextlib.suppress(BaseException):  # a tool has replaced that one too
            system._exit(code)
        system.kill(system.getpid(), signals.SIGKILL)


def _write(writer: int, data: bytes) -> None:
    while data:
        data = data[os.write(writer, data) :]


def _reset_signals(mask: set[int]) -> None:
    signals.set_wakeup_fd(-1)  # of an asyncio loop: the parent shares it
    for number in signals.valid_signals():
        if callable(signals.getsignal(number)):
            signals.signal(number, signals.SIG_IGN)
    for name in _IGNORED:
        signals.signal(getattr(signals, name), signals.SIG_IGN)
    signals.signal(signals.SIGALRM, signals.SIG_DFL)
    signals.alarm(LIFE_SECONDS)
    signals.pthread_sigmask(signals.SIG_SETMASK, mask - {signals.SIGALRM})


def _close_sockets() -> None:
    """Close the sockets: if the job dies, its peers notice at once and its ports are free. The
    descriptors stay taken, because objects of the parent refer to them.
    """
    try:
        descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:  # no /proc, or no descriptor left: this is optional
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(null, descriptor, inheritable=False)


def _step_back() -> None:
    """Lower the priority of the child, for cores and for memory: training goes first."""
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError), Path("/proc/self/oom_score_adj").open("w", encoding="ascii") as file:
        file.write("1000")


def kill(pid: int, number: int) -> None:
    """Send a signal. Raises OSError."""
    system.kill(pid, number)


def reap(pid: int, *, block: bool) -> object:
    """Return the exit status of our child, RUNNING or UNKNOWN. Only this pid is waited for: other
    children are the user's.
    """
    if pid == 0:  # its pid was lost: only its pipe shows the result
        return UNKNOWN if block else RUNNING
    try:
        done, status = system.waitpid(pid, 0 if block else os.WNOHANG)
    except ChildProcessError:  # other code of this process waits for every child, or ignores SIGCHLD
        return UNKNOWN
    return status if done else RUNNING


def drained(pipe: int) -> bytes:
    """Return the rest of the pipe."""
    data = b""
    with contextlib.suppress(
        OSError
    ):  # no more data: BlockingIOError if another process still holds the other end
        while block := os.read(pipe, 1 << 16):
            data += block
    return data


def is_killed(status: object) -> bool:
    """Return whether a process was ended by SIGKILL."""
    return isinstance(status, int) and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signals.SIGKILL


def how_it_ended(status: object) -> str:
    """Describe an exit status, to continue "the process ..."."""
    if not isinstance(status, int):
        return "ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:  # a real-time signal
            name = f"signal {number}"
        hint = " (is the host out of memory?)" if number == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    return f"exited with status {os.waitstatus_to_exitcode(status)}"
