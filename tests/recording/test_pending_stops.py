"""Engines that are still writing their files while the step goes on."""

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
    """Return a function that makes an engine of another process whose stop takes 0.6 s."""

    def elsewhere(key="remote:1", **options):
        return engine(key=key, delays={"stop": STOP_SECONDS}, **options)

    return elsewhere


def outcomes(session):
    session.background.round()
    return [entry.status for entry in read_entries(session, 2)]


class TestInsideAStep:
    def test_the_step_goes_on(self, recording, elsewhere):
        """The rollout's exit does not wait for the engine's file, and the step's exit does. The recorded
        time ends with the rollout.
        """
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
        """The next window of the same engine waits for its stop. A window of another engine does not."""
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
        """The end of the run waits for the engine's file, even if the step's window is still open."""
        session = recording()
        stepprof.attach(elsewhere())
        step = profile_step(2).start()
        with profile_step(2, role="rollout"):
            pass
        stepprof.shutdown(20)
        step.stop()
        assert [entry.status for entry in read_entries(session, 2)] == ["complete"]

    def test_a_step_that_raises_keeps_the_engines_file(self, recording, elsewhere):
        """If the step raises an exception, it reaches the caller, and the engine's file is kept."""
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
        """If no window of the step is around the rollout, the rollout's exit waits for the engine."""
        session = recording()
        stepprof.attach(elsewhere())
        with profile_step(2, role="rollout"):
            pass
        assert outcomes(session) == ["complete"]

    def test_an_engine_of_this_process(self, recording, elsewhere):
        """The rollout's exit waits for an engine of this process, which the training thread may call next."""
        session = recording()
        stepprof.attach(elsewhere(None))
        with profile_step(2):
            with profile_step(2, role="rollout"):
                pass
            assert outcomes(session) == ["complete"]

    async def test_a_coroutine_awaits_its_engines(self, recording, elsewhere):
        """A rollout in a coroutine waits at its exit for the engine."""
        session = recording()
        stepprof.attach(elsewhere())
        async with profile_step(2):
            async with profile_step(2, role="rollout"):
                pass
            assert outcomes(session) == ["complete"]
        assert outcomes(session) == ["complete"]
