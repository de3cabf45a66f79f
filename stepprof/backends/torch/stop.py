"""Stop a torch session that records all threads while other threads are in the middle of an op.

torch 2.13 frees what a session has recorded at its stop, even while a thread still writes to it. A
thread inside torch's callback at that moment, or one that is preempted there and continues later,
corrupts the memory of the process. On a machine with more work than cores, three threads of small
ops ended five of six processes with 60 captures.

So before the stop, torch is set to record no further ops. Then each other thread must be seen
asleep, or must have run for longer than a callback takes; by then it has left a callback that began
before. The interpreter's lock does not help: a backward pass runs thousands of ops without it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

from stepprof.host import real_time
from stepprof.interrupts import ignored, ours

CALLBACK_NS = 1_000_000
"""A thread that has run for this long has left its callback, which takes a few microseconds."""

LEAVE_SECONDS = 5.0
"""The longest wait for a thread that gets no processor."""

_LOOK_SECONDS = 0.001
_TASKS = Path("/proc/self/task")
_BYTES = 512


def stop_all_threads(session: Any, activities: set[Any]) -> None:
    """Stop a session as soon as no other thread can be in the middle of torch's callback.

    Args:
        session: the torch profiler, recording.
        activities: the activities to stop recording; with the CPU's alone, torch prints a warning about resuming.
    """
    with ignored(Exception):  # this torch cannot do it: only the wait is left
        session.toggle_collection_dynamic(False, activities)
    _wait_for_callbacks()
    session.stop_trace()


def _wait_for_callbacks() -> None:
    """Wait until each other thread has slept, or has run for long enough."""
    me = threading.get_native_id()
    inside = {thread: _processor_ns(thread) for thread in _threads() if thread != me and _is_up(thread)}
    deadline = real_time.monotonic() + LEAVE_SECONDS
    while inside and real_time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        inside = {
            thread: before
            for thread, before in inside.items()
            if _is_up(thread) and _processor_ns(thread) - before < CALLBACK_NS
        }


def _threads() -> list[int]:
    """Return the threads of this process, Python's and others; none if the system does not list them."""
    try:
        return [int(entry.name) for entry in _TASKS.iterdir()]
    except ours(OSError):
        return []


def _is_up(thread: int) -> bool:
    """Return whether a thread runs or is ready (R), or waits for memory or a disk (D): it may be
    anywhere. False once it has ended.
    """
    return _read(thread, b"stat").rpartition(b") ")[2][:1] in (b"R", b"D")


def _processor_ns(thread: int) -> int:
    """Return how long a thread has run on a processor."""
    fields = _read(thread, b"schedstat").split()
    return int(fields[0]) if fields else 0


def _read(thread: int, name: bytes) -> bytes:
    """Read a file of /proc about a thread; empty once it has ended. `os.read` would release the
    interpreter's lock and wait for it again: 5 ms for each of hundreds of threads next to one that
    computes.
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
