"""How to leave a job to a forked child without harming the process that trains.

A fork is the one way past the GIL that has the captured events in its memory already. What only this module knows is what a forked copy of a training process must not do:

* It runs no code of the user but what `os.register_at_fork` calls: no garbage collection, no atexit, no signal handler; it leaves by `os._exit`, whatever happens.
* It holds no socket open: if the job dies, its peers hear of it at once, and its ports are free.
* Should memory run out, the kernel shall take the child and not the job. If the parent dies, the child still finishes its file.
* Python 3.12 and later warn of a fork beside threads; as an error the warning would lose us the child's pid.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

__all__ = ["RUNNING", "UNKNOWN", "drained", "fork_for", "how_it_ended", "reap", "signals_held"]

Report = Callable[[], object]
"""The whole work of a child; what it returns is sent to the parent as one line of JSON."""

# what must not end the child half-way through its file
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")

RUNNING = object()
UNKNOWN = object()


@contextlib.contextmanager
def signals_held() -> Iterator[set[int]]:
    """Hold back every signal of this thread until the block ends: one that came right after the fork would run the parent's handler in the child. Yields the mask to restore."""
    before = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())}
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_for(work: Report, mask: set[int]) -> tuple[int, int]:
    """Start a child for `work`, inside `signals_held`; return its pid (0: it exists, but its pid was lost) and the pipe that it answers through.

    Raises:
        OSError: no process, no memory, no descriptor is left.
        RuntimeError: the interpreter is on its way out.
    """
    reader, writer = os.pipe()
    parent, pid = os.getpid(), 0
    try:
        # for the one line below; not `catch_warnings`, which undoes what other threads set meanwhile
        warnings.filterwarnings(
            "ignore", "This process .* is multi-threaded", DeprecationWarning, rf"{re.escape(__name__)}$"
        )
        try:
            pid = os.fork()
        except (
            DeprecationWarning
        ):  # another thread turned the filter back just now: the child exists and tells its pid
            pid = 0
        if pid == 0 and os.getpid() != parent:
            _be_child(work, writer, mask)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    os.set_blocking(reader, False)
    return pid, reader


def _be_child(work: Report, writer: int, mask: set[int]) -> NoReturn:
    """All of the child's life. It never returns, whatever happens."""
    code = 70
    try:
        gc.disable()  # no finalizer of the user's objects
        _let_go_of_signals(mask)
        _let_go_of_sockets()
        _step_back()
        data = json.dumps(work()).encode() + b"\n"
        while data:
            data = data[os.write(writer, data) :]
        code = 0
    except BaseException:  # noqa: BLE001 - in a forked copy of the user's program nothing may travel further up; the parent sees the exit status
        code = 71
    finally:
        os._exit(code)


def _let_go_of_signals(mask: set[int]) -> None:
    signal.set_wakeup_fd(-1)  # an asyncio loop's: it is shared with the parent
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_go_of_sockets() -> None:
    """If the job dies, its peers shall hear of it at once and its ports be free. The numbers stay taken: objects of the parent still refer to them."""
    try:
        descriptors = [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]
        null = os.open(os.devnull, os.O_RDWR)
    except OSError:  # no /proc here, or no descriptor left: it is a courtesy
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(null, descriptor, inheritable=False)


def _step_back() -> None:
    """The training goes first: for the cores, and for the memory if there is too little of it."""
    with contextlib.suppress(OSError):
        os.nice(5)
    with contextlib.suppress(OSError), Path("/proc/self/oom_score_adj").open("w", encoding="ascii") as file:
        file.write("1000")


def reap(pid: int, *, block: bool) -> object:
    """Return the exit status of our child, RUNNING or UNKNOWN; asked for by its pid alone: the user's own children are not ours to wait for."""
    if pid == 0:  # its pid was lost: only its pipe tells
        return UNKNOWN if block else RUNNING
    try:
        done, status = os.waitpid(pid, 0 if block else os.WNOHANG)
    except ChildProcessError:  # other code of this process waits for every child, or ignores SIGCHLD
        return UNKNOWN
    return status if done else RUNNING


def drained(pipe: int) -> bytes:
    """Return what is left in the pipe."""
    data = b""
    with contextlib.suppress(
        OSError
    ):  # nothing more: BlockingIOError where another process still holds the other end
        while block := os.read(pipe, 1 << 16):
            data += block
    return data


def how_it_ended(status: object) -> str:
    """Say what an exit status means, in words that continue "the process ..."."""
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
