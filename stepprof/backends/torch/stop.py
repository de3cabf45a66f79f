"""Stopping a torch session that records all threads, beside threads that are in the middle of an op.

torch 2.13 frees what a session has recorded at its stop, even while a thread still writes to it. A thread that is inside torch's callback at
that moment, or loses its processor there and goes on later, corrupts the memory of the process: on a machine with more work than
cores, three threads of small ops ended five of six processes of 60 captures. So before the stop torch is set to record no further
ops. One that began before has left the callback when its thread is seen asleep, or has had a processor for longer than a callback
takes; until then what it writes to is still there.

The interpreter's lock is no help: a backward pass runs thousands of ops without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["stop_all_threads"]

CALLBACK_NS = 1_000_000
"""A thread that has had a processor for so long has left the callback that it was in: one takes a few microseconds."""

LEAVE_SECONDS = 5.0
"""How long to wait for that at most: a thread that gets no processor for longer is not waited for."""

_LOOK_SECONDS = 0.001
_TASKS = Path("/proc/self/task")
_BYTES = 512


def stop_all_threads(session: Any, activities: set[Any]) -> None:
    """Stop a session as soon as no other thread can be in the middle of torch's callback.

    Args:
        session: the torch profiler, recording.
        activities: what is to be recorded no further: with the CPU's alone torch warns of what happens to one that is resumed.
    """
    with contextlib.suppress(
        Exception
    ):  # a torch that can do no such thing: then waiting is all that is left
        session.toggle_collection_dynamic(False, activities)
    _wait_for_callbacks()
    session.stop_trace()


def _wait_for_callbacks() -> None:
    """Wait until each other thread has slept, or has had a processor for long enough."""
    me = threading.get_native_id()
    inside = {thread: _processor_ns(thread) for thread in _threads() if thread != me and _is_up(thread)}
    deadline = time.monotonic() + LEAVE_SECONDS
    while inside and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        inside = {
            thread: before
            for thread, before in inside.items()
            if _is_up(thread) and _processor_ns(thread) - before < CALLBACK_NS
        }


def _threads() -> list[int]:
    """The threads of this process, Python's and others; none where the system does not tell."""
    try:
        return [int(entry.name) for entry in _TASKS.iterdir()]
    except OSError:
        return []


def _is_up(thread: int) -> bool:
    """Whether a thread has a processor or wants one (R), or is held up by memory or a disk (D): it may be anywhere. False once it has ended."""
    return _read(thread, b"stat").rpartition(b") ")[2][:1] in (b"R", b"D")


def _processor_ns(thread: int) -> int:
    """How long a thread has had a processor."""
    fields = _read(thread, b"schedstat").split()
    return int(fields[0]) if fields else 0


def _read(thread: int, name: bytes) -> bytes:
    """A file of /proc about a thread; empty once it has ended.

    `os.read` would let go of the interpreter's lock, and wait for it again: 5 ms for each of hundreds of threads beside one that computes.
    """
    libc = _libc()
    file = libc.open(b"/proc/self/task/%d/%s" % (thread, name), os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return b""
    buffer = ctypes.create_string_buffer(_BYTES)
    size = libc.read(file, buffer, _BYTES)
    libc.close(file)
    return buffer.raw[: max(size, 0)]


@functools.cache
def _libc() -> ctypes.PyDLL:
    """The C library, whose calls keep the interpreter's lock."""
    return ctypes.PyDLL(None)
