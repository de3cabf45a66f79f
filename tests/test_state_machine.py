"""The four states of a target, without a backend or engine."""

from __future__ import annotations

import logging
import threading

import pytest

from stepprof.errors import BackendError, StateError
from stepprof.state_machine import STATES, TRANSITIONS, EngineTargetMachine, TargetMachine

HOLDER = "actor/0 of step 2"
ROUND = ("arm", "start", "stop")


def destinations(trigger: str, state: str) -> list[str]:
    """Return the states to which a trigger leads from a state, according to the table."""
    return [
        each["dest"]
        for each in TRANSITIONS
        if each["trigger"] == trigger and state in _sources(each["source"])
    ]


def _sources(source: str | list[str]) -> list[str]:
    return [source] if isinstance(source, str) else source


def in_state(state: str) -> TargetMachine:
    """Return a machine of the local target in this state."""
    machine = TargetMachine("rank-0")
    for trigger in ROUND[: STATES.index(state)]:
        getattr(machine, trigger)(holder=HOLDER)
    return machine


def engine_in_state(state: str, lines: list) -> EngineTargetMachine:
    """Return a machine of an engine in this state."""
    machine = EngineTargetMachine("rollout/0", lines.append)
    for trigger in ROUND[: STATES.index(state)]:
        machine.commit(trigger)
    return machine


def pairs(*more: str) -> list[tuple[str, str]]:
    triggers = dict.fromkeys([each["trigger"] for each in TRANSITIONS] + list(more))
    return [(state, trigger) for state in STATES for trigger in triggers]


class TestTargetMachine:
    def test_each_state_of_a_round_logs_one_line(self, log) -> None:
        """Each transition from idle to flushing and back writes one log line."""
        machine = TargetMachine("rank-0")
        for trigger in (*ROUND, "done"):
            assert getattr(machine, trigger)(holder=HOLDER, step=2, role="actor", reason=None)
        assert [(line["from"], line["to"]) for line in log] == [
            ("idle", "armed"),
            ("armed", "recording"),
            ("recording", "flushing"),
            ("flushing", "idle"),
        ]
        assert {line["target"] for line in log} == {"rank-0"}
        assert all(line["seconds"] >= 0 and line["step"] == 2 and "reason" not in line for line in log)

    @pytest.mark.parametrize(("state", "trigger"), pairs())
    def test_every_trigger_in_every_state(self, state, trigger, log) -> None:
        """An illegal trigger raises an error that names the state and the holder, and changes nothing."""
        machine = in_state(state)
        before = len(log)
        expected = destinations(trigger, state)
        assert getattr(machine, f"may_{trigger}")() == bool(expected)
        if expected:
            assert getattr(machine, trigger)(holder=HOLDER)
            assert [machine.state] == expected
            return
        holder = "no window" if state == "idle" else HOLDER
        message = rf"rank-0: cannot {trigger} while {state} \(held by {holder}\)"
        with pytest.raises(StateError, match=message):
            getattr(machine, trigger)(holder="another window")
        assert machine.state == state
        assert len(log) == before

    @pytest.mark.parametrize(("state", "trigger"), [("idle", "arm"), ("armed", "start")])
    @pytest.mark.parametrize("error", [BackendError("no"), KeyboardInterrupt()])
    def test_the_act_runs_before_the_state_changes(self, state, trigger, error, log) -> None:
        """The act runs before the transition. If it raises an error, the caller gets
        it, and the state is unchanged.
        """
        machine = in_state(state)
        before, seen = len(log), []

        def fail() -> None:
            seen.append(machine.state)
            raise error

        with pytest.raises(type(error)) as raised:
            getattr(machine, trigger)(holder=HOLDER, act=fail)
        assert raised.value is error
        assert (seen, machine.state, len(log)) == ([state], state, before)
        getattr(machine, trigger)(holder=HOLDER, act=lambda: seen.append(machine.state))
        assert seen == [state, state]

    def test_stop_on_another_thread_than_its_owner(self, log) -> None:
        """`stop` on another thread than the owner's returns False and changes
        nothing. The owner can still stop.
        """
        machine = in_state("recording")
        machine.owner = threading.get_ident()
        before, answers = len(log), []
        thread = threading.Thread(
            target=lambda: answers.extend((machine.may_stop(), machine.stop(holder=HOLDER)))
        )
        thread.start()
        thread.join(10)
        assert answers == [False, False]
        assert (machine.state, len(log)) == ("recording", before)
        assert machine.may_stop()
        assert machine.stop(holder=HOLDER)

    def test_an_idle_machine_has_no_holder(self) -> None:
        """After an abort in any state, the machine has no holder."""
        for state in STATES[1:]:
            machine = in_state(state)
            assert machine.holder == HOLDER
            machine.abort(holder=HOLDER)
            assert machine.holder == "no window"

    def test_the_librarys_own_log_lines_are_dropped(self, caplog) -> None:
        """The log lines of the library `transitions` are dropped for this machine, and kept for others."""
        with caplog.at_level(logging.DEBUG, logger="transitions"):
            TargetMachine("rank-0").arm(holder="x")
            logging.getLogger("transitions.core").info("%sExecuted", "theirs: ")
        assert [
            record.getMessage() for record in caplog.records if record.name.startswith("transitions")
        ] == ["theirs: Executed"]


class TestEngineTargetMachine:
    @pytest.mark.parametrize(("state", "trigger"), pairs("nonsense"))
    def test_an_engine_has_the_transitions_of_the_local_target(self, state, trigger, log) -> None:
        """An engine has the transitions of the local target. An illegal trigger raises
        an error and changes nothing.
        """
        machine = engine_in_state(state, [])
        expected = destinations(trigger, state)
        if expected:
            machine.commit(trigger)
            assert [machine.state] == expected
            return
        with pytest.raises(StateError, match=f"rollout/0: cannot {trigger} while {state}"):
            machine.commit(trigger)
        assert machine.state == state

    def test_the_owner_writes_the_log_lines(self, log) -> None:
        """The log line of a transition has the fields with a value, and is passed to the owner."""
        lines: list[dict] = []
        machine = engine_in_state("recording", lines)
        machine.commit("abort", step=2, reason=None)
        assert [(line["from"], line["to"]) for line in lines][-1] == ("recording", "idle")
        assert lines[-1]["step"] == 2
        assert "reason" not in lines[-1]
