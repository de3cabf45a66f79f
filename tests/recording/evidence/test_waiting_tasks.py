"""Coroutines that wait for an asyncio lock or semaphore, as seen from another thread."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from counting import instructions_of

from stepprof.recording.evidence.waiting_tasks import MOST_TASKS, held_tasks

SECONDS = 0.05


def seen(main):
    """Return what another thread sees while the coroutines of `main` wait: the
    function and the three counts.
    """
    found = []

    async def run() -> None:
        tasks = asyncio.gather(*await main())
        await asyncio.sleep(SECONDS)
        thread = threading.Thread(target=lambda: found.append(held_tasks()))
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

    def test_without_an_event_loop(self) -> None:
        assert held_tasks() is None

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
        while sum(held_tasks() is not None for _ in range(500)) == 0:
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
            found = instructions_of(held_tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return found

        assert asyncio.run(counted(1000)) < asyncio.run(counted(MOST_TASKS - 1)) / 10
