"""Coroutines that wait for an asyncio lock or semaphore, as seen from another thread."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from counting import instructions_of

from stepprof.recording.evidence.waiting_tasks import (
    MOST_KNOWN,
    MOST_TASKS,
    Held,
    TaskSampler,
    held_tasks,
    pending_tasks,
)

SECONDS = 0.05


def held_in(ident) -> Held | None:
    return held_tasks(pending_tasks(ident))


def seen(main):
    """Return what another thread sees while the coroutines of `main` wait: the
    function and the three counts.
    """
    found = []

    async def run() -> None:
        tasks = asyncio.gather(*await main())
        await asyncio.sleep(SECONDS)
        ident = threading.get_ident()
        thread = threading.Thread(target=lambda: found.append(held_in(ident)))
        thread.start()
        thread.join(30)
        tasks.cancel()
        await asyncio.gather(tasks, return_exceptions=True)

    asyncio.run(run())
    [one] = found
    return None if one is None else (one.function.co_name, one.waiting, one.passed, one.others)


async def call(limit) -> None:
    async with limit:
        await asyncio.sleep(30)


async def agent(limit) -> None:
    await call(limit)


class TestHeldTasks:
    @pytest.mark.parametrize(
        "kind", [lambda: asyncio.Semaphore(1), lambda: asyncio.BoundedSemaphore(1), asyncio.Lock]
    )
    def test_one_coroutine_past_the_lock(self, kind) -> None:
        async def main():
            limit = kind()
            return [call(limit) for _ in range(8)]

        assert seen(main) == ("call", 7, 1, 1)

    def test_three_coroutines_past_the_lock(self) -> None:
        """If a coroutine calls another one, the innermost function is named."""

        async def main():
            limit = asyncio.Semaphore(3)
            return [agent(limit) for _ in range(8)]

        assert seen(main) == ("call", 5, 3, 1)

    def test_ended_tasks_do_not_count(self) -> None:
        """Ended tasks are not counted; tasks that wait for something else are counted as others."""

        async def main():
            limit = asyncio.Semaphore(1)
            ended = asyncio.create_task(asyncio.sleep(0))
            return [ended, *(call(limit) for _ in range(4)), asyncio.sleep(30), asyncio.Event().wait()]

        assert seen(main) == ("call", 3, 1, 3)

    @pytest.mark.parametrize("count", [1, MOST_TASKS + 1])
    def test_nothing_is_known(self, count) -> None:
        """If no task waits for a lock, or there are too many tasks, the result is None."""

        async def main():
            limit = asyncio.Semaphore(1)
            return [call(limit) for _ in range(count)]

        assert seen(main) is None

    @pytest.mark.parametrize(("count", "known"), [(MOST_KNOWN // 2, True), (MOST_KNOWN, False)])
    def test_many_ended_tasks(self, count, known) -> None:
        """Tasks that have ended are not counted. With too many of them in the process none is looked at."""
        ended = []

        async def end() -> None:
            pass

        async def main():
            ended.extend(asyncio.create_task(end()) for _ in range(count))
            await asyncio.sleep(0)
            limit = asyncio.Semaphore(1)
            return [call(limit) for _ in range(8)]

        assert seen(main) == (("call", 7, 1, 1) if known else None)

    def test_event_loops_of_two_threads(self) -> None:
        """Each event loop has its own tasks and its own stretches."""
        loops = [asyncio.new_event_loop() for _ in range(2)]
        threads = [threading.Thread(target=each.run_forever) for each in loops]
        for each in threads:
            each.start()

        async def begin(count: int):
            limit = asyncio.Lock()
            return asyncio.gather(*[call(limit) for _ in range(count)], return_exceptions=True)

        async def end(tasks) -> None:
            tasks.cancel()
            await asyncio.gather(tasks, return_exceptions=True)

        counts = (3, 5)
        try:
            tasks = [
                asyncio.run_coroutine_threadsafe(begin(count), loop).result(30)
                for count, loop in zip(counts, loops, strict=True)
            ]
            for each in loops:
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), each).result(30)
            sampler = TaskSampler()
            for now in range(3):
                sampler.end(now)
                for at, each in enumerate(threads):
                    sampler.sample(at, (1, None), pending_tasks(each.ident))
            sampler.end(9)
            found = [
                (each.thread, each.held.waiting, each.held.passed, each.end_ns) for each in sampler.stretches
            ]
            for one, loop in zip(tasks, loops, strict=True):
                asyncio.run_coroutine_threadsafe(end(one), loop).result(30)
        finally:
            for loop, each in zip(loops, threads, strict=True):
                loop.call_soon_threadsafe(loop.stop)
                each.join(30)
                loop.close()
        assert found == [(0, 2, 1, 9), (1, 4, 1, 9)]

    def test_without_an_event_loop(self) -> None:
        assert held_in(threading.get_ident()) is None

    def test_objects_of_the_job_are_freed_on_their_own_thread(self) -> None:
        """Reading the tasks never destroys a local variable of the job on another thread."""
        idents = set()

        class Local:
            def __del__(self) -> None:
                idents.add(threading.get_ident())

        async def step(limit) -> None:
            local = Local()  # noqa: F841
            async with limit:
                await asyncio.sleep(0)

        async def main() -> None:
            limit = asyncio.Semaphore(1)
            while not over.is_set():
                await asyncio.gather(*(step(limit) for _ in range(10)))

        over = threading.Event()
        deadline = time.monotonic() + 30
        loop = threading.Thread(target=asyncio.run, args=(main(),))
        loop.start()
        while sum(held_in(loop.ident) is not None for _ in range(500)) == 0:
            assert time.monotonic() < deadline
        over.set()
        loop.join(30)
        assert idents == {loop.ident}


class TestPrice:
    def test_many_coroutines_cost_no_more_than_the_limit(self) -> None:
        """With 1,000 coroutines, which are too many, it executes a tenth of the instructions that it needs
        for the most that it counts.
        """

        async def counted(count: int) -> int:
            limit = asyncio.Semaphore(1)
            tasks = [asyncio.create_task(call(limit)) for _ in range(count)]
            await asyncio.sleep(0)
            found = instructions_of(lambda: held_in(threading.get_ident()))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return found

        assert asyncio.run(counted(1000)) < asyncio.run(counted(MOST_TASKS - 1)) / 10
