"""The four states and the turn, without any backend."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from stepprof.errors import StateError
from stepprof.state_machine import STATES, TRANSITIONS, TargetMachine, Turn


def elsewhere(act):
    """What it returns on another thread."""
    result = []
    thread = threading.Thread(target=lambda: result.append(act()))
    thread.start()
    thread.join(10)
    return result[0]


def in_state(state) -> TargetMachine:
    """A machine that has come to this state."""
    machine = TargetMachine("rank-0")
    for trigger in ("arm", "start", "stop")[: STATES.index(state)]:
        machine.commit(trigger, "actor/0 of step 2")
    return machine


class TestTargetMachine:
    def test_a_round(self, log) -> None:
        """idle, armed, recording, flushing and back: one line each."""
        machine = TargetMachine("rank-0")
        for trigger in ("arm", "start", "stop", "done"):
            machine.check(trigger)
            machine.commit(trigger, "actor/0 of step 2", step=2, role="actor", reason=None)
        assert [(line["from"], line["to"]) for line in log] == [
            ("idle", "armed"),
            ("armed", "recording"),
            ("recording", "flushing"),
            ("flushing", "idle"),
        ]
        assert {line["target"] for line in log} == {"rank-0"}
        assert all(line["seconds"] >= 0 and line["step"] == 2 and "reason" not in line for line in log)

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("trigger", ["arm", "start", "stop", "done", "abort", "nonsense"])
    def test_every_trigger_in_every_state(self, state, trigger, log) -> None:
        """What is not a transition is refused, says who holds the target, and changes nothing."""
        machine = in_state(state)
        before = len(log)
        targets = [new for name, old, new in TRANSITIONS if (name, old) == (trigger, state)]
        if targets:
            machine.check(trigger)
            machine.commit(trigger, "actor/0 of step 2")
            assert [machine.state] == targets
            return
        holder = "nobody" if state == "idle" else "actor/0 of step 2"
        message = rf"rank-0: cannot {trigger} while {state} \(held by {holder}\)"
        with pytest.raises(StateError, match=message):
            machine.check(trigger)
        with pytest.raises(StateError, match=message):
            machine.commit(trigger, "somebody else")
        assert machine.state == state
        assert len(log) == before

    def test_an_idle_machine_is_held_by_nobody(self) -> None:
        """However it came there."""
        for state in STATES[1:]:
            machine = in_state(state)
            assert machine.holder == "actor/0 of step 2"
            machine.commit("abort", "actor/0 of step 2")
            assert machine.holder == "nobody"

    def test_the_librarys_own_lines_stay_out_of_the_log(self, caplog) -> None:
        """Each transition has its one line; those of other machines of the application are not touched."""
        with caplog.at_level(logging.DEBUG, logger="transitions"):
            TargetMachine("rank-0").commit("arm", "x")
            logging.getLogger("transitions.core").info("%sExecuted", "theirs: ")
        assert [
            record.getMessage() for record in caplog.records if record.name.startswith("transitions")
        ] == ["theirs: Executed"]


class TestTurn:
    def test_another_thread_waits(self) -> None:
        """Within its bound; without one it is not delayed at all."""
        turn = Turn()
        assert turn.take(0)
        assert not elsewhere(lambda: turn.take(0))
        assert not elsewhere(lambda: turn.take(0.05))
        assert elsewhere(lambda: turn.taken)
        turn.give()
        assert not elsewhere(lambda: turn.taken)

    def test_it_is_handed_over(self) -> None:
        """Whoever waits gets it when it is given back."""
        turn = Turn()
        turn.take(0)
        threading.Timer(0.05, lambda: None).start()
        taken = []

        def wait():
            taken.append(turn.take(10))
            turn.give()

        thread = threading.Thread(target=wait)
        thread.start()
        turn.give()
        thread.join(10)
        assert taken == [True]

    def test_coming_back_into_ones_own_act_is_refused(self) -> None:
        """Instead of a deadlock: and the act keeps its turn."""
        turn = Turn()
        turn.take(0)
        for timeout in (0, 1):
            with pytest.raises(StateError, match="already acting on the target"):
                turn.take(timeout)
        assert not elsewhere(lambda: turn.take(0))
        turn.give()
        assert turn.take(0)

    def test_what_an_interrupt_left_behind(self) -> None:
        """A turn whose act is over in any way but by giving it back is free for whoever comes next."""
        turn = Turn()

        def interrupted():
            turn.take(0)
            raise KeyboardInterrupt

        for next_one in (lambda: turn.take(0), lambda: elsewhere(lambda: turn.take(0))):
            with pytest.raises(KeyboardInterrupt):
                interrupted()
            assert not turn.taken
            assert next_one()

    def test_the_act_is_another_functions(self) -> None:
        """One that takes the turn for its caller says so."""
        turn = Turn()

        def take():
            return turn.take(0, by=sys._getframe(1))

        assert take()
        assert elsewhere(lambda: turn.taken)
        assert not elsewhere(lambda: turn.take(0.01))
