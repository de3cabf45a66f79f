"""Spans of tasks of trio and of greenlets, with the real libraries: what overlaps on one thread is no recursion."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import greenlet
import pytest
import trio
from spanning import spans_of

from stepprof import profile_step, region
from stepprof.instrument.other_tasks import find_task, task_of

COUNT = 3


@pytest.fixture
def session(start):
    return start(backend="null")


class TestTrio:
    def test_tasks_of_trio(self, session) -> None:
        """Calls of three tasks that lie inside each other in time have a task each; so has a window."""

        async def call(number: int) -> None:
            with region("request"):
                await trio.sleep(0.06 - 0.02 * number)

        async def main() -> None:
            async with profile_step(1), trio.open_nursery() as nursery:
                for number in range(COUNT):
                    nursery.start_soon(call, number)
                    await trio.sleep(0.005)

        trio.run(main)
        tasks = {span["task"] for span in spans_of(session, "request")}
        assert len(tasks) == COUNT
        assert None not in tasks
        assert {span["step"] for span in spans_of(session, "request")} == {1}

    def test_a_task_in_a_loop_of_asyncio(self, session) -> None:
        """Where trio is a guest of asyncio, the task is trio's; other code of the loop has its asyncio task."""
        ended = asyncio.Event()

        async def call() -> None:
            with region("request"):
                await trio.sleep(0.01)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(COUNT):
                    nursery.start_soon(call)

        async def host() -> None:
            loop = asyncio.get_running_loop()
            trio.lowlevel.start_guest_run(
                main, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=lambda _: ended.set()
            )
            with region("host"):
                await ended.wait()

        asyncio.run(host())
        assert len({span["task"] for span in spans_of(session, "request")}) == COUNT
        [own] = spans_of(session, "host")
        assert own["task"] is not None


class TestGreenlets:
    def test_greenlets_that_interleave(self, session) -> None:
        """Regions of greenlets that switch have a task each. Code outside of them has none."""
        main = greenlet.getcurrent()

        def call() -> None:
            with region("request"):
                main.switch()
                time.sleep(0.001)

        with region("outside"):
            opened = [greenlet.greenlet(call) for _ in range(COUNT)]
            for each in opened:
                each.switch()
            for each in reversed(opened):
                each.switch()
        assert len({span["task"] for span in spans_of(session, "request")}) == COUNT
        assert [span["task"] for span in spans_of(session, "outside")] == [None]


class TestFindTask:
    @pytest.mark.parametrize("imported", ["", "import trio", "import greenlet"])
    def test_only_in_a_program_that_uses_them(self, imported: str) -> None:
        """Without trio and greenlet nothing is looked up, and `import stepprof` imports neither."""
        code = f"import sys, stepprof\n{imported}\nfrom stepprof.instrument.other_tasks import find_task\nprint(find_task() is not None, *{{'trio', 'greenlet'}} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["True", imported.split()[1]] if imported else ["False"]

    def test_outside_of_any_task(self) -> None:
        """A plain thread runs no task."""
        find = find_task()
        assert find is not None
        assert find() is None

    async def test_a_task_of_asyncio(self) -> None:
        """A coroutine of asyncio is still found by its loop."""
        find = find_task()
        assert find is not None
        assert task_of(find()) is asyncio.current_task()
