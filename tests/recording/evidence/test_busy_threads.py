"""The threads of a real process that are busy."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

from stepprof.recording.evidence.busy_threads import busy_threads


def ids(most: int = 1000, seconds: float = 0.2) -> set[int]:
    """Return the native ids of the threads, except this one, that are busy after this time."""
    time.sleep(seconds)
    return set(busy_threads({threading.get_ident()}, most).values())


class TestBusyThreads:
    def test_a_thread_that_works(self, threads) -> None:
        """A working thread is busy, and one that waits for an event is not."""
        before = ids()
        idle, busy = threads.idle(3), threads.busy(2)
        assert busy <= ids()
        assert not idle & ids()
        assert ids() - before == busy

    @pytest.mark.parametrize("pool", [ThreadPoolExecutor, ThreadPool])
    def test_a_pool(self, pool, threads) -> None:
        """Threads of a pool are busy only while they run a task."""
        before = ids()
        with pool(4) as made:
            numbers = made.map(lambda _: threading.get_native_id(), range(8))
            assert list(numbers)
            assert ids() == before
            running = threading.Semaphore(0)
            started: set[int] = set()

            def task(_) -> None:
                started.add(threading.get_native_id())
                running.release()
                threads.work()

            submit = getattr(made, "submit", None) or (lambda *call: made.apply_async(call[0], call[1:]))
            for number in range(2):
                submit(task, number)
            assert all(running.acquire(timeout=30) for _ in range(2))
            assert ids() - before == started
            threads.over.set()

    def test_a_semaphore_and_another_program(self, threads) -> None:
        """A thread that waits for a semaphore or for another program is busy: only waiting for
        work or for a thread is idle.
        """
        before = ids()
        limit = threading.Semaphore(0)
        waiting = threads.start(1, limit.acquire)
        program = [sys.executable, "-c", "import time; time.sleep(2)"]
        waiting |= threads.start(1, lambda: subprocess.run(program, capture_output=True, check=True))
        assert ids() - before == waiting
        limit.release()

    def test_the_number_of_threads_is_limited(self, threads) -> None:
        threads.busy(20)
        assert len(ids(most=5)) == 5

    def test_own_threads_are_left_out(self, threads) -> None:
        assert not threads.busy(1, name="stepprof-anything") & ids()
