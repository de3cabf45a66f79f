"""The task that a real thread runs, according to its stack."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

import stepprof
from stepprof.recording.evidence.stacks import stack_of
from stepprof.recording.evidence.thread_tasks import Task, task_of


def current() -> Task | None:
    """Return the task of this thread."""
    stack = stack_of(threading.get_ident())
    return task_of([code for code, *_ in stack])


def task(*_) -> Task | None:
    return current()


class Worker(threading.Thread):
    def run(self) -> None:
        self.found = current()


def deep(depth: int) -> Task | None:
    return deep(depth - 1) if depth else current()


class TestTaskOf:
    def test_a_pool(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(task).result() == ("task", True)
            assert pool.submit(stepprof.region("score")(task)).result() == ("task", True)
            assert [*pool.map(task, range(2))] == [("task", True)] * 2
        with ThreadPool(1) as pool:
            assert pool.apply(task) == ("task", True)
            assert pool.map(task, range(2)) == [("task", True)] * 2
        assert asyncio.run(asyncio.to_thread(task)) == ("task", True)

    def test_a_thread(self) -> None:
        found = []
        thread = threading.Thread(target=lambda: found.append(task()))
        thread.start()
        thread.join(30)
        [one] = found
        assert one.name.endswith("<lambda>")
        assert not one.pool
        worker = Worker()
        worker.start()
        worker.join(30)
        assert worker.found.name.endswith("run")

    def test_a_pool_without_a_task(self) -> None:
        """A thread of a pool has no task while it waits, or while it runs a function that is written in C."""
        with ThreadPoolExecutor(1) as pool:
            [ident] = pool.map(lambda _: threading.get_ident(), range(1))
            for call in (None, time.sleep):
                if call:
                    pool.submit(call, 0.5)
                time.sleep(0.2)
                stack = stack_of(ident)
                assert task_of([code for code, *_ in stack]) is None

    def test_the_threads_that_manage_a_pool(self) -> None:
        """The threads that manage a pool pass on tasks and results, and have no task of their own."""
        before = {each.ident for each in threading.enumerate()}
        with ThreadPool(1) as pool:
            pool.apply_async(time.sleep, (0.5,))
            time.sleep(0.2)
            idents = {each.ident for each in threading.enumerate()} - before
            stacks = [stack_of(ident) for ident in idents]
        assert any(code.co_name == "_handle_results" for stack in stacks for code, *_ in stack)
        assert [task_of([code for code, *_ in stack]) for stack in stacks] == [None] * len(stacks)

    def test_the_main_thread(self) -> None:
        """The main thread has no task, and neither has a thread whose stack is too deep."""
        assert current() is None
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(deep, 100).result() == ("deep", True)
            assert pool.submit(deep, 200).result() is None

    @pytest.mark.parametrize("pool", [True, False])
    def test_an_installed_package(self, pool, tmp_path) -> None:
        """A thread that an installed package starts has no task. A function of a package in a pool is one."""
        file = tmp_path / "site-packages" / "library.py"
        found = []
        space = {"current": current, "found": found}
        exec(compile("def watch():\n    found.append(current())", str(file), "exec"), space)
        if pool:
            with ThreadPoolExecutor(1) as made:
                made.submit(space["watch"]).result()
        else:
            thread = threading.Thread(target=space["watch"])
            thread.start()
            thread.join(30)
        assert found == [("watch", True) if pool else None]
