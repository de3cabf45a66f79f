"""The kernel's figures for a thread and for this process."""

from __future__ import annotations

import os
import threading
import time

import pytest

from stepprof.host import kernel_times
from stepprof.host.kernel_times import ThreadTimes, storage_bytes


def test_a_thread_that_works() -> None:
    """The CPU time of a thread grows as much as Python's clock shows."""
    times = ThreadTimes(threading.get_native_id())
    before, clock = times.read(), time.thread_time_ns()
    while time.thread_time_ns() < clock + 100_000_000:
        pass
    used = time.thread_time_ns() - clock
    after = times.read()
    times.close()
    assert after[0] - before[0] == pytest.approx(used, abs=20_000_000)
    assert after[1] >= before[1]
    assert times.read() is None


def test_a_thread_that_has_ended() -> None:
    """A thread that has ended has no times, whether its file was opened before or is opened now."""
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    times = ThreadTimes(thread.native_id)
    assert times.read() is not None
    assert not times.ended
    thread.join()
    deadline = time.monotonic() + 20
    while not times.ended:  # in the kernel, the thread ends later than in Python
        assert time.monotonic() < deadline
        times.read()
    times.close()
    assert ThreadTimes(thread.native_id).ended


def test_bytes_of_storage(tmp_path) -> None:
    """Bytes that are written to storage are counted."""
    before = storage_bytes()
    with (tmp_path / "large").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    after = storage_bytes()
    assert after[1] - before[1] >= 1 << 20
    assert after[0] >= before[0]


def test_on_another_system_nothing_is_known(monkeypatch, tmp_path) -> None:
    """If the kernel's files are missing, the figures are None, and no thread counts as ended."""
    monkeypatch.setattr(kernel_times, "_TASKS", tmp_path / "task")
    monkeypatch.setattr(kernel_times, "_IO", tmp_path / "io")
    times = ThreadTimes(threading.get_native_id())
    assert (times.read(), times.ended, storage_bytes()) == (None, False, None)
    times.close()
