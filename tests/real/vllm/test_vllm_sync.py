"""Test synchronous windows in coroutines with a real engine: on another event loop, on the loop
that the window blocks, and with a failing start.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from driven import begin, read_entries, wait_for_entry
from vllm_driven import Trace

import stepprof

if TYPE_CHECKING:
    from vllm_driven import Live


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a session in which rollouts are recorded; it ends with the test."""
    yield functools.partial(begin, tmp_path)
    stepprof.shutdown()


def forward(folder: Path, step: int, count: int = 1) -> list[tuple[int, int]]:
    """Return the forward steps of a step with `count` entries of its engine, the first one complete."""
    entries = read_entries(folder, step)
    assert len(entries) == count
    assert (entries[0]["status"], entries[0]["error"]) == ("complete", None)
    (artifact,) = entries[0]["artifacts"]
    return Trace.named(folder, artifact, step).forward


def test_an_engine_on_another_loop(live: Live, recording: Callable[..., Any], tmp_path: Path) -> None:
    """The engine's own loop answers. Each trace has the forward steps of its window and no others."""
    recording()
    stepprof.attach(live.engine, role="rollout")

    async def loop() -> None:
        for step in range(1, 5):
            with stepprof.profile_step(step, role="rollout"):
                await asyncio.to_thread(live.generate, step + 2)
            window = stepprof.profile_step(step, role="actor").start()
            await asyncio.to_thread(live.generate, 1, 3)  # this window is not of the engine's role
            window.stop()

    asyncio.run(loop())
    stepprof.shutdown()
    for step in (2, 3):
        assert forward(tmp_path, step) == [(3, 0), *[(0, 1)] * (step + 1)]


def test_an_engine_that_hangs_costs_the_bounds(
    live: Live, recording: Callable[..., Any], tmp_path: Path
) -> None:
    """The window blocks its loop only for the start timeout. A capture that the engine starts late
    is stopped at once, and the next window is complete.
    """
    recording(engine_start_timeout_seconds=1)
    stepprof.attach(live.engine, role="rollout")
    (core,) = live.processes()

    async def loop() -> tuple[float, dict[str, Any]]:
        os.kill(core.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with stepprof.profile_step(2, role="rollout"):
                pass
            return time.monotonic() - began, wait_for_entry(tmp_path, "failed")
        finally:
            os.kill(core.pid, signal.SIGCONT)

    seconds, entry = asyncio.run(loop())
    assert seconds < 20  # the stop has 60 s
    assert entry["health"] == "unknown"
    assert "async with" in entry["error"]
    deadline = time.monotonic() + 60
    while stepprof.state().engines != {"rollout/0": "armed"} and time.monotonic() < deadline:
        live.generate(1)
    with stepprof.profile_step(3, role="rollout"):
        live.generate(3)
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    assert (entry["status"], len(entry["artifacts"])) == ("partial", 1)
    assert len(forward(tmp_path, 3)) == 3


def test_a_synchronous_exit_on_the_engines_loop(
    live: Live, recording: Callable[..., Any], tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    """The engine answers the stop once the loop is free. The window does not wait for it, and its
    entry and one warning say why it is `partial`.
    """
    recording()
    stepprof.attach(live.engine, role="rollout")

    async def loop() -> float:
        window = await stepprof.profile_step(2, role="rollout").astart()
        await live.generating(4)
        began = time.monotonic()
        window.stop()
        seconds = time.monotonic() - began
        await live.generating(2)  # while the stop is in progress
        async with stepprof.profile_step(3, role="rollout"):
            await live.generating(3)
        return seconds

    assert live.run(loop()) < 40  # the bound is 60
    stepprof.shutdown()
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "partial"
    assert "astop" in entry["error"]
    (line,) = [line for line in log if line["event"] == "engine.stop_not_awaited"]
    assert "async with" in line["reason"]
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) >= 4
    assert len(forward(tmp_path, 3)) == 3


def test_a_shutdown_on_the_engines_loop(live: Live, recording: Callable[..., Any], tmp_path: Path) -> None:
    """Shutdown does not wait for an answer that needs this loop. The recorded data is kept, and no
    recording continues.
    """
    session = recording()
    stepprof.attach(live.engine, role="rollout")

    async def loop() -> float:
        await stepprof.profile_step(2, role="rollout").astart()
        await live.generating(4)
        began = time.monotonic()
        stepprof.shutdown()
        seconds = time.monotonic() - began
        deadline = time.monotonic() + 60
        while not read_entries(tmp_path)[0]["artifacts"] and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            session.background.round()
        return seconds

    assert live.run(loop()) < 40
    assert not live.engine._profile_session_active
    (entry,) = read_entries(tmp_path)
    assert entry["status"] == "partial", entry
    assert len(Trace.named(tmp_path, entry["artifacts"][0]).forward) == 4


def test_a_start_that_fails_at_once(
    live: Live, recording: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body begins at once. The driver checks concurrently whether the engine is dying, and the
    engine records a later step.
    """
    recording(steps="2-5")
    stepprof.attach(live.engine, role="rollout")
    seconds = []

    async def broken(profile_prefix: str | None = None, **options: object) -> None:
        raise RuntimeError("a worker said no")

    for step in (2, 3, 4):
        with monkeypatch.context() as patch:
            patch.setattr(live.engine, "start_profile", broken)
            began = time.monotonic()
            with stepprof.profile_step(step, role="rollout"):
                seconds.append(time.monotonic() - began)
                live.generate(2)
    with stepprof.profile_step(5, role="rollout"):
        live.generate(3)
    stepprof.shutdown()
    assert min(seconds) < 2.5  # three of the checks for a dying engine take 3 s
    (entry,) = read_entries(tmp_path, 2)
    assert (entry["status"], entry["health"]) == ("failed", "unknown")
    assert "a worker said no" in entry["error"]
    assert len(forward(tmp_path, 5)) == 3
