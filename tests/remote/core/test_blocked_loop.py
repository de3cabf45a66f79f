"""Synchronous windows on a thread whose event loop runs. They block that loop and record every engine that
does not live on it.
"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from simulated import Driver, Listener, read_entries

import stepprof
from stepprof.errors import StateError
from stepprof.remote.loop import on_loop

CALL_SECONDS = 0.2
"""How long a call to an engine takes. A window that does not wait for the call is shorter."""


class Hopping(Driver):
    """A driver whose engine answers its calls on its own event loop."""

    async def start(self, window):
        await on_loop(self.loop, _answer)
        await super().start(window)

    async def stop(self, window):
        await on_loop(self.loop, _answer)
        return await super().stop(window)


async def _answer():
    await asyncio.sleep(0.01)


@pytest.fixture
def recording(start):
    """Return a function that starts a session that records the rollouts of all replicas."""

    def recording(**config):
        roles = {"rollout": {"ranks": "all"}}
        return start(**{"steps": "2-5", "backend": "null", "roles": roles, **config})

    return recording


@pytest.fixture
def slow(engine):
    """Return a function that makes an engine with a slow start and stop."""
    return lambda **settings: engine(delays={"start": CALL_SECONDS, "stop": CALL_SECONDS}, **settings)


def attach_hopping(one):
    """Attach an engine that answers its calls on its own loop."""
    attached = stepprof.attach(one)
    attached.targets[0].driver.__class__ = Hopping
    return attached


async def settled(session, step=2, count=1, seconds=10.0):
    """Return the entries of a step once none of them is lost; the loop runs meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        await asyncio.sleep(0.02)
        session.background.round()
        entries = read_entries(session, step)
        if len(entries) >= count and all(entry.status != "lost" for entry in entries):
            return entries
        assert time.monotonic() < deadline, entries


def block(body):
    with stepprof.profile_step(2, role="rollout"):
        body()


def start_and_stop(body):
    window = stepprof.profile_step(2, role="rollout").start()
    body()
    window.stop()


def decorator(body):
    stepprof.profile_step(2, role="rollout")(body)()


def generator(body):
    @stepprof.profile_step(2, role="rollout")
    def steps():
        yield body()

    list(steps())


def left_open(body):
    stepprof.profile_step(2, role="rollout").start()
    body()
    stepprof.profile_step(6, role="rollout").start().stop()


class TestElsewhere:
    """Engines that do not live on the loop that the window blocks."""

    @pytest.mark.parametrize("form", [block, start_and_stop, decorator, generator, left_open])
    async def test_start_and_stop_are_answered_around_the_body(self, recording, slow, form):
        """In every form of a window the start is answered before the body begins, and the stop before the
        window has ended.
        """
        one, session = slow(), recording()
        stepprof.attach(one)
        seen = []

        def body():
            seen.append((len(one.windows), one.asked("stop"), time.time_ns()))

        form(body)
        assert one.asked("stop") == 1
        [(started, stops, now)] = seen
        assert (started, stops) == (1, 0)
        [entry] = await settled(session)
        assert entry.status == ("partial" if form is left_open else "complete")
        assert entry.start_unix_ns <= now <= entry.end_unix_ns
        assert entry.stop_seconds >= CALL_SECONDS

    async def test_an_engine_that_lives_on_another_loop(self, recording, engine, other_loop):
        """An engine on another loop is recorded, because its loop answers while the caller's loop is
        blocked.
        """
        one, session = engine(loop=other_loop), recording()
        attach_hopping(one)
        with stepprof.profile_step(2, role="rollout"):
            assert len(one.windows) == 1
        assert [entry.status for entry in await settled(session)] == ["complete"]

    async def test_a_body_that_awaits(self, recording, slow):
        """A synchronous block in a coroutine blocks the loop only while it enters and exits. The body can
        await.
        """
        one, session = slow(), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            await asyncio.sleep(0.05)
            assert one.asked("stop") == 0
        assert one.asked("stop") == 1
        assert [entry.status for entry in await settled(session)] == ["complete"]

    async def test_two_windows_in_a_row_do_not_mix(self, recording, slow):
        """The first capture ends before the second one begins."""
        one, session = slow(), recording()
        stepprof.attach(one)
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                pass
        [first], [second] = await settled(session, 2), await settled(session, 3)
        assert [first.status, second.status] == ["complete", "complete"]
        assert first.end_unix_ns < second.start_unix_ns

    async def test_a_hung_engine_costs_the_bounds(self, recording, engine):
        """A hung engine delays the window only for the timeouts. The entry suggests `async with`."""
        gate = threading.Event()
        one = engine(hold={"start": gate})
        session = recording(engine_start_timeout_seconds=0.3, engine_stop_timeout_seconds=0.3)
        stepprof.attach(one)
        began = time.monotonic()
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert time.monotonic() - began < 15
        [entry] = await settled(session)
        assert entry.status == "failed"
        assert "async with" in entry.error
        gate.set()
        assert (await settled(session))[0].status in ("failed", "partial")

    async def test_sessions_elsewhere_know_the_step_before_the_body(self, recording, engine):
        """A listener gets the step before the body begins."""
        one = engine(cls=Listener, kind="spans")
        recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            assert ((2, "rollout"),) in one.calls


class TestOnThisLoop:
    """Engines that live on the loop that the window blocks."""

    async def test_nothing_is_sent(self, recording, engine):
        """An engine on the blocked loop gets no start. Its entry is skipped and suggests `async with`."""
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        stepprof.attach(one)
        with stepprof.profile_step(2, role="rollout"):
            pass
        [entry] = await settled(session)
        assert (entry.status, one.asked("start")) == ("skipped", 0)
        assert "async with" in entry.error

    async def test_the_others_record_and_one_warning_is_logged(self, recording, engine, slow, log):
        """The engines on the blocked loop are skipped, and the other engine records. One warning is logged
        for all steps and engines.
        """
        loop = asyncio.get_running_loop()
        elsewhere, session = slow(), recording()
        stepprof.attach([engine(loop=loop), elsewhere, engine(loop=loop)])
        for step in (2, 3):
            with stepprof.profile_step(step, role="rollout"):
                assert len(elsewhere.windows) == step - 1
        for step in (2, 3):
            entries = await settled(session, step, 3)
            assert [entry.status for entry in entries] == ["skipped", "complete", "skipped"]
        warnings = [line for line in log if line["event"] == "engine.not_started"]
        assert len(warnings) == 1
        assert "async with" in warnings[0]["reason"]

    async def test_strict_raises_for_it(self, recording, engine):
        """With `strict`, the window raises StateError, so that a test of the job finds the error."""
        one = engine(loop=asyncio.get_running_loop())
        recording(strict=True)
        stepprof.attach(one)
        with pytest.raises(StateError, match="async with"), stepprof.profile_step(2, role="rollout"):
            pass
        assert one.calls == []

    @pytest.mark.parametrize("strict", [False, True])
    async def test_a_window_inside_an_asynchronous_one_joins(self, recording, engine, strict):
        """A synchronous window inside an asynchronous one joins its capture, and no call is sent for it."""
        one, session = engine(loop=asyncio.get_running_loop()), recording(strict=strict)
        attach_hopping(one)
        async with stepprof.profile_step(2, role="rollout"):
            with stepprof.profile_step(2, role="rollout"):
                pass
            assert one.asked("stop") == 0
        assert one.asked("start") == one.asked("stop") == 1
        assert [entry.status for entry in await settled(session, count=2)] == ["complete", "joined"]

    async def test_a_synchronous_stop_after_an_asynchronous_start(self, recording, engine, log):
        """The window does not wait for the stop, which is answered once the loop is free. The entry is
        partial and suggests `astop`.
        """
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attach_hopping(one)
        for step in (2, 3):
            window = await stepprof.profile_step(step, role="rollout").astart()
            began = time.monotonic()
            window.stop()
            assert time.monotonic() - began < 30  # the stop timeout is 60 s
            assert one.asked("stop") == step - 2
            [entry] = await settled(session, step)
            assert entry.status == "partial"
            assert "astop" in entry.error
            assert len(entry.artifacts) == 1
        assert [line["event"] for line in log].count("engine.stop_not_awaited") == 1

    async def test_an_unanswered_stop_is_reported_at_its_bound(self, recording, engine):
        """The entry names the unanswered stop after its timeout, even if the window did not wait for it."""
        gate = threading.Event()
        one = engine(loop=asyncio.get_running_loop(), hold={"stop": gate})
        session = recording(engine_stop_timeout_seconds=0.2)
        stepprof.attach(one)
        (await stepprof.profile_step(2, role="rollout").astart()).stop()
        deadline = time.monotonic() + 10
        while not any("not been answered" in str(entry.error) for entry in read_entries(session)):
            assert time.monotonic() < deadline, read_entries(session)
            await asyncio.sleep(0.02)
            session.background.round()
        gate.set()
        assert [entry.status for entry in await settled(session)] == ["partial"]

    async def test_a_shutdown_does_not_wait_for_itself(self, recording, engine, log):
        """The shutdown does not wait for a stop that needs its own loop. The stop is answered once the
        loop is free, and the entry is partial.
        """
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attach_hopping(one)
        await stepprof.profile_step(2, role="rollout").astart()
        began = time.monotonic()
        stepprof.shutdown()
        assert time.monotonic() - began < 30  # the shutdown waits for 120 s at most
        assert one.asked("stop") == 0
        assert [line["event"] for line in log].count("engine.stop_not_awaited") == 1
        [entry] = await settled(session)
        assert (entry.status, len(entry.artifacts)) == ("partial", 1)

    async def test_a_shutdown_while_a_coroutine_leaves_its_window(self, recording, engine):
        """A coroutine awaits a stop that needs this loop. The shutdown does not wait for it, and the entry
        becomes complete.
        """
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attach_hopping(one)
        window = await stepprof.profile_step(2, role="rollout").astart()
        leaving = asyncio.ensure_future(window.astop())
        await asyncio.sleep(0)
        began = time.monotonic()
        stepprof.shutdown()
        assert time.monotonic() - began < 30  # the stop timeout is 60 s
        await leaving
        [entry] = await settled(session)
        assert (entry.status, len(entry.artifacts)) == ("complete", 1)

    async def test_a_shutdown_on_another_thread_waits(self, recording, engine):
        """A shutdown on another thread waits for the stop, because the loop is free."""
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attach_hopping(one)
        await stepprof.profile_step(2, role="rollout").astart()
        await asyncio.to_thread(stepprof.shutdown)
        assert one.asked("stop") == 1
        [entry] = read_entries(session)
        assert (entry.status, len(entry.artifacts)) == ("partial", 1)

    @pytest.mark.parametrize("then_shutdown", [False, True])
    async def test_a_detach_does_not_wait(self, recording, engine, then_shutdown):
        """The engine is stopped once the loop is free, even if the run ends right after the detach."""
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attached = attach_hopping(one)
        window = await stepprof.profile_step(2, role="rollout").astart()
        stepprof.detach(attached)
        if then_shutdown:
            began = time.monotonic()
            stepprof.shutdown()
            assert time.monotonic() - began < 30
        [entry] = await settled(session)
        assert (entry.status, one.asked("stop")) == ("partial", 1)
        await window.astop()


class TestCoroutines:
    """Asynchronous windows block no loop."""

    async def test_closing_a_window_that_was_left_open(self, recording, engine):
        """The next `astart` closes a window that was left open. The loop is not blocked, so the engine on
        it answers the stop.
        """
        one, session = engine(loop=asyncio.get_running_loop()), recording()
        attach_hopping(one)
        await stepprof.profile_step(2, role="rollout").astart()
        following = await stepprof.profile_step(3, role="rollout").astart()
        assert one.asked("stop") == 1
        await following.astop()
        [entry] = await settled(session)
        assert (entry.status, len(entry.artifacts)) == ("partial", 1)
        assert "left open" in entry.error
        assert [entry.status for entry in await settled(session, 3)] == ["complete"]
