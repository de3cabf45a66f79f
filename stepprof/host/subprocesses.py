"""Run another program with limits on its time and its output, and end it with all its children.

The job's process is not forked: `subprocess` starts the program in one step, without running Python
code in the child. The program inherits no descriptors of the job except its own two. It has a
process group and a session of its own: signals for the job do not reach it, and a signal for its
group reaches its children.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from stepprof.host import real_time
from stepprof.host.readable import readable
from stepprof.interrupts import ignored

LOOK_SECONDS = 0.1
DEATH_SECONDS = 5.0
CHUNK = 1 << 16
TAIL = 2000
"""Number of characters that are kept of a program's output, the last ones."""
FREE_BYTES = 1 << 20
REST_SECONDS = 0.002
"""Minimum seconds between reads from a program that writes without pause: the job needs the interpreter itself."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a program."""

    status: int | None
    """Its exit status, negative for a signal; None where other code of this process has waited for it."""
    seconds: float
    killed: str | None
    """The reason it was killed; None if it ended by itself."""
    output: str
    """The end of its output."""


def start(
    argv: Sequence[str], env: Mapping[str, str], *, errors: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program whose output is a pipe.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        errors: a file for its stderr; its stdin is a pipe then. None: stderr goes to the output, and stdin is empty.

    Raises:
        OSError: it cannot be started.
    """
    return subprocess.Popen(  # noqa: S603 - a command of the configuration, as a list, without a shell
        list(argv),
        stdin=subprocess.DEVNULL if errors is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors is None else errors,
        env=dict(env),
        close_fds=True,
        start_new_session=True,
    )


def run_bounded(
    argv: Sequence[str], env: Mapping[str, str], seconds: float, stop: threading.Event, stopped: str
) -> Ended:
    """Run a program to its end. Kill it and its children on timeout, or when `stop` is set.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        seconds: the timeout.
        stop: ends it early.
        stopped: the reason in the result then.

    Raises:
        OSError: it cannot be started.
    """
    began = real_time.monotonic()
    child = start(argv, env)
    tail: collections.deque[bytes] = collections.deque(maxlen=2)
    killed = None
    try:
        if not _read_until_it_ends(child, tail, began + seconds, stop):
            killed = stopped if stop.is_set() else f"it did not end within {seconds:g} s"
    finally:
        status = end(child)
    output = b"".join(tail).decode("utf-8", "replace")[-TAIL:]
    return Ended(status, real_time.monotonic() - began, killed, output)


def _read_until_it_ends(
    child: subprocess.Popen[bytes], tail: collections.deque[bytes], deadline: float, stop: threading.Event
) -> bool:
    """Collect the end of the output. Return whether the program has ended; if not, it must be killed."""
    assert child.stdout is not None  # noqa: S101 - narrows a type; no input decides it
    descriptor = child.stdout.fileno()
    os.set_blocking(descriptor, False)
    total, at_end = 0, False
    while True:
        ended = has_ended(child)  # first: its earlier output can be read then
        if at_end:
            stop.wait(LOOK_SECONDS if not ended else 0)
        elif not readable([descriptor], 0 if ended else LOOK_SECONDS) and ended:
            return True
        else:
            with contextlib.suppress(BlockingIOError):
                data = os.read(descriptor, CHUNK)
                at_end = not data
                total += len(data)
                if data:
                    _keep(tail, data)
        if ended and (at_end or total > FREE_BYTES):
            return True
        if total > FREE_BYTES:
            time.sleep(REST_SECONDS)
        if stop.is_set() or real_time.monotonic() > deadline:
            return False


def _keep(tail: collections.deque[bytes], data: bytes) -> None:
    """Keep the last two pieces, each long enough to be the whole tail."""
    if tail and len(tail[-1]) + len(data) <= CHUNK:
        tail.append(tail.pop() + data)
    else:
        tail.append(data)


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return whether the program has ended. It is not reaped: its process group stays reserved."""
    if child.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return child.poll() is not None
    try:
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # other code of this process waits for every child, or ignores SIGCHLD
        return True


def end(child: subprocess.Popen[bytes]) -> int | None:
    """Kill the program and its group. Return its exit status; None if other code has taken it."""
    waited = True
    if hasattr(os, "waitid") and child.returncode is None:
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            waited = False
    if child.returncode is None and waited:
        # not yet reaped: the number of its group is not used again
        with ignored(OSError):
            os.killpg(child.pid, signal.SIGKILL)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with ignored(OSError):
                pipe.close()
    try:
        status = child.wait(DEATH_SECONDS)
    except subprocess.TimeoutExpired:  # in a system call that SIGKILL does not end: a dead network disk
        return None
    return status if waited else None
