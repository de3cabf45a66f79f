"""Engines that write their files while the step goes on."""

from __future__ import annotations

import time

import pytest
from simulated import read_entries

import stepprof
from stepprof import profile_step

STOP_SECONDS = 0.6


@pytest.fixture
def recording(start):
    def recording(**config):
        return start(**{"steps": "2-5", "backend": "null", "ranks": "all", **config})

    return recording


@pytest.fixture
def elsewhere(engine):
    """Makes an engine of another process, which writes its file for a while."""

    def elsewhere(key="remote:1", **options):
        return engine(key=key, delays={"stop": STOP_SECONDS}, **options)

    return elsewhere


def outcomes(session):
    session.background.round()
    return [entry.status for entry in read_entries(session, 2)]


class TestInsideAStep:
    def test_the_step_goes_on(self, recording, elsewhere):
        """The rollout's exit waits for no file; the step's does; the recorded interval ends with the rollout."""
        session = recording()
        stepprof.attach(elsewhere())
        with profile_step(2):
            with profile_step(2, role="rollout"):
                time.sleep(0.1)
                before = time.time_ns()
            left = time.monotonic()
            assert outcomes(session) == ["lost"]
        assert time.monotonic() - left > STOP_SECONDS / 2
        assert outcomes(session) == ["complete"]
        [entry] = read_entries(session, 2)
        assert before < entry.end_unix_ns < before + STOP_SECONDS * 1e9

    def test_the_next_window_of_the_engine_waits(self, recording, elsewhere):
        """So that it can be started again; a window of other engines does not."""
        session = recording(engine_start_timeout_seconds=0.2)
        stepprof.attach(elsewhere())
        other = elsewhere("remote:2")
        stepprof.attach(other, role="reward")
        with profile_step(2):
            with profile_step(2, role="rollout"):
                pass
            with profile_step(2, role="reward"):
                assert outcomes(session)[0] == "lost"
            with profile_step(2, role="rollout"):
                pass
        assert outcomes(session) == ["complete"] * 3

    def test_the_end_of_the_run_waits(self, recording, elsewhere):
        """Nothing is lost even if the window of the step never ends."""
        session = recording()
        stepprof.attach(elsewhere())
        step = profile_step(2).start()
        with profile_step(2, role="rollout"):
            pass
        stepprof.shutdown(20)
        step.stop()
        assert [entry.status for entry in read_entries(session, 2)] == ["complete"]

    def test_an_interrupted_step_keeps_the_engines_file(self, recording, elsewhere):
        """Its exception reaches the caller, and the engine's file is kept."""
        session = recording()
        stepprof.attach(elsewhere())

        def step():
            with profile_step(2):
                with profile_step(2, role="rollout"):
                    pass
                raise KeyError(1)

        with pytest.raises(KeyError):
            step()
        assert outcomes(session) == ["complete"]


class TestWhoIsWaitedFor:
    def test_a_rollout_outside_a_step_waits_at_its_exit(self, recording, elsewhere):
        """A rollout that is in no window of its step waits at its own exit."""
        session = recording()
        stepprof.attach(elsewhere())
        with profile_step(2, role="rollout"):
            pass
        assert outcomes(session) == ["complete"]

    def test_an_engine_of_this_process(self, recording, elsewhere):
        """The training loop may call it next, from its own thread: its exit waits."""
        session = recording()
        stepprof.attach(elsewhere(None))
        with profile_step(2):
            with profile_step(2, role="rollout"):
                pass
            assert outcomes(session) == ["complete"]

    async def test_a_coroutine_awaits_its_engines(self, recording, elsewhere):
        """A coroutine awaits its engines itself."""
        session = recording()
        stepprof.attach(elsewhere())
        async with profile_step(2):
            async with profile_step(2, role="rollout"):
                pass
            assert outcomes(session) == ["complete"]
        assert outcomes(session) == ["complete"]
