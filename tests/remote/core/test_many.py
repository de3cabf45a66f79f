"""Many engines at once: a failure of one does not affect the others, and each has its own log lines and
entry.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections import Counter

import pytest
from simulated import dead, read_entries

import stepprof
from stepprof.remote.base import EngineFailure
from stepprof.remote.core.event import Gate, passed
from stepprof.remote.ray.calls import NodeAgent
from stepprof.run.layout import RunDir

MANY = 64
SLOW = 2.0
"""The seconds of a start timeout: long against what a busy machine takes for a window."""


@pytest.fixture
def recording(start):
    """Return a function that starts a session that records the rollouts of all replicas."""

    def recording(**config):
        return start(**{"steps": "2-5", "backend": "null", "roles": {"rollout": {"ranks": "all"}}, **config})

    return recording


def settled(session, step=2, seconds=10.0):
    """Return the manifest of a step once the final state of each engine is written."""
    deadline = time.monotonic() + seconds
    while True:
        session.background.round()
        entries = read_entries(session, step)
        if time.monotonic() > deadline or (entries and all(e.status != "lost" for e in entries)):
            return entries
        time.sleep(0.01)


def within(seconds, test):
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + seconds
    while not test() and time.monotonic() < deadline:
        time.sleep(0.01)
    return test()


class TestMany:
    def test_hung_and_dead_engines_do_not_delay_the_others(self, recording, engine):
        """The body waits for the timeout once. Later windows, and windows of another role, do not wait
        again.
        """
        gate = threading.Event()
        engines = [engine(name=f"engine-{number}") for number in range(MANY)]
        engines[7].hold["start"], engines[9].failing["arm"] = gate, dead()
        session = recording(engine_start_timeout_seconds=SLOW)
        stepprof.attach(engines)
        waited = []
        for step, role in ((2, "rollout"), (2, "actor"), (3, "rollout"), (3, "actor")):
            began = time.monotonic()
            with stepprof.profile_step(step, role=role):
                waited.append(time.monotonic() - began)
        assert waited[0] > 0.9 * SLOW
        assert max(waited[1:]) < 0.9 * SLOW
        for step, reason in ((2, "did not answer its start"), (3, "has not been answered")):
            entries = {entry.replica: entry for entry in settled(session, step)}
            assert Counter(entry.status for entry in entries.values())["complete"] == MANY - 2
            assert reason in entries[7].error
            assert (entries[9].status, entries[9].health) == ("failed", "dead")
        gate.set()

    def test_each_transition_of_each_is_a_line(self, recording, engine, log):
        """Each transition of each engine is one log line, in the order of that engine's transitions."""
        recording(steps="2", roles={"judge": {"ranks": "all"}})
        stepprof.attach([engine() for _ in range(MANY)], role="judge")
        with stepprof.profile_step(2, role="judge"):
            pass
        stepprof.shutdown()
        lines = [line for line in log if line["event"] == "state.changed" and line.get("role") == "judge"]
        lines = [line for line in lines if "replica" in line]
        for replica in range(MANY):
            own = [line for line in lines if line["replica"] == replica]
            assert [line["to"] for line in own] == ["armed", "recording", "flushing", "idle"]
            assert {line["target"] for line in own} == {f"judge/{replica}"}
            assert {line["step"] for line in own} == {2}

    def test_an_engine_armed_at_the_end_leaves_no_folder(self, recording, engine):
        """Engines that are armed for a step that never comes leave no folder of that step."""
        session = recording()
        stepprof.attach([engine() for _ in range(3)])
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert within(5, lambda: set(stepprof.state().engines.values()) == {"armed"})
        stepprof.shutdown()
        assert list((session.path / "step-000003").glob("rollout/*")) == []
        assert set(stepprof.state().engines.values()) == {"idle"}

    def test_an_engine_detached_while_being_armed_leaves_no_folder(self, recording, engine, mocker):
        """An engine is detached while its folder is made on a slow disk. The folder of the step is
        removed, even if another engine's arm hangs.
        """
        make, slow = RunDir.engine_folder, threading.Event()

        def make_slowly(run, step, *more):
            made = make(run, step, *more)
            if step == 3:
                hangs.delays["arm"] = 30
                slow.set()
                time.sleep(0.3)
            return made

        mocker.patch.object(RunDir, "engine_folder", make_slowly)
        session = recording()
        leaving = stepprof.attach(engine())
        stepprof.attach(hangs := engine())
        with stepprof.profile_step(2, role="rollout"):
            pass
        assert slow.wait(5)
        stepprof.detach(leaving)
        stepprof.shutdown()
        assert not (session.path / "step-000003").exists()

    def test_the_cap_counts_from_each_engines_own_start(self, recording, engine):
        """`max_seconds` counts from each engine's own start, however late the start was answered."""
        engines = [engine(name=f"{delay}", delays={"start": delay}) for delay in (0, 0.15, 0.45)]
        session = recording(max_seconds=0.3)
        stepprof.attach(engines)
        with stepprof.profile_step(2, role="rollout"):
            assert within(5, lambda: all(one.asked("stop") for one in engines))
        for entry in settled(session):
            assert (entry.status, entry.capped_by) == ("complete", "max_seconds")
            assert 0.28 < (entry.end_unix_ns - entry.start_unix_ns) / 1e9 < 3
        starts = [entry.start_unix_ns for entry in read_entries(session)]
        assert (starts[2] - starts[0]) / 1e9 > 0.3

    def test_asking_again_looks_for_no_packages(self, recording, engine, mocker):
        """Calling the callable again does not search the installed packages, which would take milliseconds
        for each engine.
        """
        now = [engine(name="first")]
        session = recording()
        stepprof.attach(lambda: list(now))
        with stepprof.profile_step(2, role="rollout"):
            pass
        now.append(engine(name="second"))
        look = mocker.spy(importlib.metadata, "entry_points")
        with stepprof.profile_step(3, role="rollout"):
            pass
        assert [entry.status for entry in settled(session, 3)] == ["complete"] * 2
        look.assert_not_called()


class TestGate:
    async def test_all_of_them(self):
        """`passed` is true when all gates are open. Gates that are already open need no wait."""
        gates = [Gate() for _ in range(3)]
        gates[0].open()
        assert not await passed(gates, 0.01)
        for gate in gates:
            gate.open()
            gate.open()
        assert await passed(gates, 0)
        assert await passed([])

    async def test_a_waiter_that_times_out_is_forgotten(self):
        """A gate that stays closed keeps no waiter that has timed out."""
        gate = Gate()
        for _ in range(3):
            assert not await passed([gate, gate], 0.001)
        assert gate._then == []


async def test_an_impossible_answer_does_not_delay_the_others():
    """A node's agent that does not know an actor returns a failure for each call."""
    calls = [(name, name, ("stop",), False) for name in ("gone", "away")]
    answers = [answer async for batch in NodeAgent().call(calls) for answer in batch]
    assert sorted(number for number, _ in answers) == [0, 1]
    assert all(isinstance(answer, EngineFailure) for _, answer in answers)
