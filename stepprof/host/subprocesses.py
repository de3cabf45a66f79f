"""Run another program with limits on its time and its output, and end it with all its children.

The program inherits no descriptors except its output. It has a process group and a session of its
own: signals for this process do not reach it, and a signal for its group reaches its children.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepprof.host import real_time
from stepprof.host.readable import readable

LOOK_SECONDS = 0.1
DEATH_SECONDS = 5.0
CHUNK = 1 << 16
TAIL = 2000
"""Number of characters that are kept of a program's output, the last ones."""
FREE_BYTES = 1 << 20
REST_SECONDS = 0.002
"""Minimum seconds between reads from a program that writes without pause."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a program."""

    status: int | None
    """Its exit status, negative for a signal; None: it could not be ended."""
    seconds: float
    killed: str | None
    """The reason it was killed; None if it ended by itself."""
    output: str
    """The end of its output."""


def run_bounded(argv: Sequence[str], env: Mapping[str, str], seconds: float) -> Ended:
    """Run a program to its end. Kill it and its children on timeout, or if this call is interrupted.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        seconds: the timeout.

    Raises:
        OSError: it cannot be started.
    """
    began = real_time.monotonic()
    child = subprocess.Popen(  # noqa: S603 - a command of the configuration, as a list, without a shell
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )
    tail: collections.deque[bytes] = collections.deque(maxlen=2)
    killed = None
    try:
        if not _read_until_it_ends(child, tail, began + seconds):
            killed = f"it did not end within {seconds:g} s"
    finally:
        status = _end(child)
    output = b"".join(tail).decode("utf-8", "replace")[-TAIL:]
    return Ended(status, real_time.monotonic() - began, killed, output)


def _read_until_it_ends(
    child: subprocess.Popen[bytes], tail: collections.deque[bytes], deadline: float
) -> bool:
    """Collect the end of the output. Return whether the program has ended; if not, it must be killed."""
    assert child.stdout is not None  # noqa: S101 - narrows a type; no input decides it
    descriptor = child.stdout.fileno()
    os.set_blocking(descriptor, False)
    total, at_end = 0, False
    while True:
        ended = _has_ended(child)  # first: its earlier output can be read then
        if at_end:
            time.sleep(LOOK_SECONDS if not ended else 0)
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
        if real_time.monotonic() > deadline:
            return False


def _keep(tail: collections.deque[bytes], data: bytes) -> None:
    """Keep the last two pieces, each long enough to be the whole tail."""
    if tail and len(tail[-1]) + len(data) <= CHUNK:
        tail.append(tail.pop() + data)
    else:
        tail.append(data)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return whether the program has ended. It is not reaped: its process group stays reserved."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(child: subprocess.Popen[bytes]) -> int | None:
    """Kill the program and its group, and return its exit status."""
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()
    try:
        return child.wait(DEATH_SECONDS)
    except subprocess.TimeoutExpired:  # in a system call that SIGKILL does not end: a dead network disk
        return None
