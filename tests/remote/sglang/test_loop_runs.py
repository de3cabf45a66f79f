"""stepprof's threads run the idle event loop of an engine; the loops are real."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepprof.remote.loop import remote_loop
from stepprof.remote.sglang.loop_runs import LoopRuns, runs_of


@pytest.fixture
def idle() -> Iterator[asyncio.AbstractEventLoop]:
    """Return an event loop that no thread runs, as that of a synchronous engine between two calls."""
    loop = asyncio.new_event_loop()
    yield loop
    assert not loop.is_running()
    loop.close()


def wait(coroutine: Coroutine[Any, Any, object]) -> object:
    """Wait for a coroutine on stepprof's own loop."""
    return remote_loop().submit(coroutine).result(10)


class TestRun:
    def test_ends_with_the_answer(self, idle: asyncio.AbstractEventLoop) -> None:
        runs = LoopRuns()
        runs.allow(60)
        answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "answered"), idle)
        wait(runs.run(idle, answer))
        assert answer.result(0) == "answered"

    def test_ends_when_no_longer_allowed(self, idle: asyncio.AbstractEventLoop) -> None:
        runs = LoopRuns()
        runs.allow(0.05)
        wait(runs.run(idle, concurrent.futures.Future()))
        assert runs.seconds_left <= 0

    def test_leaves_a_loop_that_its_owner_runs(self) -> None:
        loop = asyncio.new_event_loop()
        owner = threading.Thread(target=loop.run_forever)
        owner.start()
        runs = LoopRuns()
        runs.allow(60)
        wait(runs.run(loop, concurrent.futures.Future()))
        assert loop.is_running()
        loop.call_soon_threadsafe(loop.stop)
        owner.join(10)
        loop.close()


class TestRelease:
    def test_ends_the_runs_of_all_calls(
        self, idle: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After `release`, the caller can run its loop at once, and later runs are not allowed."""
        monkeypatch.setattr("stepprof.remote.sglang.loop_runs.SLICE_SECONDS", 60.0)
        runs = LoopRuns()
        runs.allow(60)
        running = remote_loop().submit(runs.run(idle, concurrent.futures.Future()))
        begun = threading.Event()
        idle.call_soon_threadsafe(begun.set)
        assert begun.wait(10)
        wait(runs.release())
        assert running.result(0) is None
        assert runs.seconds_left <= 0
        assert idle.run_until_complete(asyncio.sleep(0, "the caller's")) == "the caller's"


def test_links_to_one_engine_share_its_runs() -> None:
    engine, other = SimpleNamespace(), SimpleNamespace()
    runs = runs_of(engine)
    assert runs_of(engine) is runs
    assert runs_of(other) is not runs
