"""Calls that coroutines await one after the other, as seen from another thread while the event loop waits."""

from __future__ import annotations

import asyncio
import collections.abc
import queue
import sys
import threading
import time

import pytest

from stepprof.recording.evidence.awaited_calls import MOST_TASKS, AwaitedCalls
from stepprof.recording.evidence.waiting_tasks import pending_tasks

PLACE = (2, "rollout")
MS = 1_000_000


class Job:
    """A job whose coroutines wait until they were sampled: each sample is 100 ms after the one before."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue = queue.SimpleQueue()
        self.calls, self.now = AwaitedCalls(), 0
        self.also: list[int] = []
        """Other threads that are sampled, just after the event loop's."""

    async def call(self) -> None:
        """Wait for a sample in a coroutine of its own."""
        await self.once()

    async def once(self) -> None:
        gate = asyncio.get_running_loop().create_future()
        self.waiting.put((asyncio.get_running_loop(), gate))
        await gate

    def sample(self, thread: int, ident: int) -> None:
        self.calls.sample(thread, PLACE, self.now, pending_tasks(ident))

    def sampled(self, main) -> list[tuple[str, str, int, int, int]]:
        """Run a coroutine, and return (caller, function, calls, milliseconds of all, of the longest)."""
        calls = self.calls
        thread = threading.Thread(target=lambda: (asyncio.run(main()), self.waiting.put(None)))
        thread.start()
        while (waits := self.waiting.get(timeout=30)) is not None:
            deadline = time.monotonic() + 30
            while sys._current_frames()[thread.ident].f_code.co_name != "select":
                assert time.monotonic() < deadline
                time.sleep(0.001)
            self.sample(7, thread.ident)
            for other, ident in enumerate(self.also, start=8):
                self.sample(other, ident)
            self.now += 100 * MS
            loop, gate = waits
            loop.call_soon_threadsafe(gate.set_result, None)
        thread.join(30)
        calls.end_lost(self.now)
        calls.end(self.now + 1000 * MS)
        assert all((each.thread, each.place) == (7, PLACE) for each in calls.found())
        return [
            (each.codes[-1].co_name, each.function.co_name, each.calls, each.busy_ns // MS, each.longest_ns // MS)
            for each in calls.found()
        ]  # fmt: skip


def test_calls_in_a_loop() -> None:
    """Each call has a coroutine of its own; the coroutines inside of it are called once each."""
    job = Job()

    async def score() -> None:
        for _ in range(5):
            await job.call()

    assert job.sampled(score) == [("score", "call", 5, 500, 100)]


def test_calls_of_different_lengths() -> None:
    """What a call awaits one after the other is counted too, below it."""
    job = Job()

    async def twice() -> None:
        await job.once()
        await job.once()

    async def score() -> None:
        await job.once()
        await twice()
        await twice()

    assert sorted(job.sampled(score)) == [
        ("score", "twice", 2, 400, 200),
        *[("twice", "once", 2, 200, 100)] * 2,
    ]


def test_a_task_that_another_one_awaits() -> None:
    """Tasks that wait for other tasks do not count: `gather` of one, and a task itself."""
    job = Job()

    async def score() -> None:
        for _ in range(3):
            await job.call()

    async def main() -> None:
        await asyncio.gather(score())
        await asyncio.create_task(score())

    assert job.sampled(main) == [("score", "call", 3, 300, 100)] * 2


def test_a_call_that_waits_for_another_task() -> None:
    """Calls that take what another task makes would wait as long at the same time."""
    job = Job()

    async def main() -> None:
        made: asyncio.Queue = asyncio.Queue()

        async def take() -> None:
            await made.get()

        async def make() -> None:
            for _ in range(4):
                await job.call()
                await made.put(1)

        task = asyncio.create_task(make())
        for _ in range(4):
            await take()
        await task

    assert [each for each in job.sampled(main) if each[1] == "take"] == []


@pytest.mark.parametrize("count", [1, MOST_TASKS])
def test_other_tasks(count) -> None:
    """If another task waits too, which one the loop waits for is not known; with too many tasks nothing is noted."""
    job = Job()

    async def main() -> None:
        others = [asyncio.create_task(asyncio.sleep(60)) for _ in range(count)]
        for _ in range(4):
            await job.call()
        for each in others:
            each.cancel()

    assert job.sampled(main) == []


def test_a_sample_of_a_task_that_runs() -> None:
    """What a running coroutine awaits is not known, so that calls which go on would be counted again."""
    job = Job()

    async def call() -> None:
        for _ in range(3):
            await job.once()
            job.sample(7, threading.get_ident())

    async def score() -> None:
        await call()
        await call()

    assert [each for each in job.sampled(score) if each[1] == "call"] == []


class Compiled(collections.abc.Coroutine):
    """A coroutine that is no object of Python's own type, like those of Cython."""

    def __init__(self, coroutine) -> None:
        self.send, self.throw, self.close = coroutine.send, coroutine.throw, coroutine.close

    def __await__(self):
        return self

    send = throw = close = None


def test_a_task_whose_coroutine_is_not_readable() -> None:
    """Another task that waits is another task, also if its coroutine shows nothing."""
    job = Job()

    async def main() -> None:
        other = asyncio.create_task(Compiled(asyncio.sleep(60)))
        await asyncio.sleep(0)
        for _ in range(4):
            await job.call()
        other.cancel()

    assert job.sampled(main) == []


def test_event_loops_of_other_threads() -> None:
    """Each event loop has its tasks: another one, stepprof's own too, changes nothing."""
    job, running = Job(), queue.SimpleQueue()

    async def wait() -> None:
        over = asyncio.Event()
        running.put((asyncio.get_running_loop(), over))
        await over.wait()

    async def score() -> None:
        for _ in range(5):
            await job.call()

    other = threading.Thread(target=lambda: asyncio.run(wait()))
    other.start()
    loop, over = running.get(timeout=30)
    job.also = [other.ident]
    try:
        assert job.sampled(score) == [("score", "call", 5, 500, 100)]
    finally:
        loop.call_soon_threadsafe(over.set)
        other.join(30)


def test_without_an_event_loop() -> None:
    """Without tasks there are no calls."""
    calls = AwaitedCalls()
    calls.sample(7, PLACE, 0, pending_tasks(threading.get_ident()))
    calls.end_lost(1)
    calls.end(2)
    assert calls.found() == []
