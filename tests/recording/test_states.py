"""The table "every pair is defined" of docs/states.md, tested by random sequences of events.

The test reads the table from the page. It looks up each event in the present state, and compares the
transitions in the log with those of the table.

`STATES_SEQUENCES` in the environment sets the number of sequences; `nox -s campaigns` increases it.
"""

from __future__ import annotations

import itertools
import os
import re
import runpy
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import structlog
from faulty import control, install, reset, transitions, windows
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import stepprof
from stepprof import profile_step
from stepprof.backends.base import Busy
from stepprof.config.config import Config
from stepprof.errors import BackendError
from stepprof.recording.window_handle import EarlyEngines
from stepprof.state_machine import STATES

PAGE = Path(__file__).parents[2] / "docs" / "states.md"
SELECTED = (2, 3, 7, 8)
MOST_OPEN = 6
SEQUENCES = int(os.environ.get("STATES_SEQUENCES", "20"))


@dataclass(frozen=True)
class Cell:
    """The effect and the outcome of an event in a state."""

    effect: str
    outcome: str | None

    def path(self, state: str) -> list[tuple[str, str]]:
        """Return the transitions of the effect."""
        states = [state, *re.findall(r"-> (\w+)", self.effect)]
        return list(itertools.pairwise(states))


def read_table(text: str) -> dict[str, dict[str, Cell | None]]:
    """Return the table as event → state → cell. A cell is None if the event is impossible in the state."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    header = next(row for row in rows if row[0] == "event")
    table = {}
    for event, *cells in rows[rows.index(header) + 1 :]:
        found = {}
        for state, cell in zip(header[1:], cells, strict=True):
            effect, _, outcome = cell.strip("`").partition(": ")
            found[state] = None if cell == "\N{EN DASH}" else Cell(effect, outcome or None)
        table[event] = found
    return table


TABLE = read_table(PAGE.read_text())

LAST = "exit, the last of the opener's step"
ASKED = "region, tick or window after a stop was posted"
ARM, ARM_OTHER = "arm: a window of the previous step exits", "arm for another step than the armed one"


@dataclass(eq=False)
class Entered:
    """A window that was entered."""

    window: profile_step
    step: int
    role: str | None
    selected: bool
    number: int = 0

    @property
    def key(self):
        return self.step, self.role, self.number

    def leave(self, error=None) -> None:
        self.window.__exit__(error and type(error), error, None)


class Sequences(RuleBasedStateMachine):
    """The possible events of a training loop, and the transitions that the table expects."""

    visited: ClassVar[set[tuple[str, str]]] = set()

    @initialize(thread_bound=st.booleans())
    def begin(self, thread_bound) -> None:
        self.kept = ExitStack()
        self.folder = self.kept.enter_context(tempfile.TemporaryDirectory())
        self.kept.callback(structlog.reset_defaults)
        self.log = self.kept.enter_context(structlog.testing.capture_logs())
        self.worker = self.kept.enter_context(ThreadPoolExecutor(1))
        self.other = self.kept.enter_context(ThreadPoolExecutor(1))
        self.kept.callback(stepprof.shutdown)
        self.runs = 0
        reset()
        control.thread_bound = thread_bound
        self._init()

    def _init(self) -> None:
        self.runs += 1
        config = Config(
            backend="faulty",
            steps=list(SELECTED),
            output_dir=self.folder,
            min_free_memory="none",
            max_bytes="1kB",
        )
        self.session = stepprof.init(config, run_id=f"run-{self.runs}")
        self.open: list[Entered] = []
        self.capture: Entered | None = None
        self.members: list[Entered] = []
        self.owner = "main"
        self.armed: int | None = None
        self.spent: list[Entered] = []
        self.asked = False
        self.expected: dict[tuple, str] = {}
        self.body_errors: dict[tuple, str | None] = {}
        self.entered: Counter = Counter()

    # -- doing and checking

    def _on(self, where, act):
        if where == "main":
            return act()
        return {"worker": self.worker, "other": self.other}[where].submit(act).result(30)

    def _cell(self, event, state) -> Cell:
        cell = TABLE[event][state]
        assert cell is not None, f"{event!r} came about while {state}"
        self.visited.add((event, state))
        return cell

    def _happens(self, events, act, where="main", state=None) -> list[str | None]:
        """Carry out events. The log must show the transitions that the table has for them, in this order."""
        state = state or stepprof.state().status
        expected, outcomes, refused = [], [], 0
        for event in events:
            cell = self._cell(event, state)
            expected += cell.path(state)
            outcomes.append(cell.outcome)
            refused += cell.effect == "refused"
            state = expected[-1][1] if expected else state
        before, calls = len(self.log), len(control.calls)
        self._on(where, act)
        lines = self.log[before:]
        assert transitions(lines) == expected, events
        assert (
            sum(line["event"] in ("call.refused", "arm.refused", "capture.stop_posted") for line in lines)
            == refused
        ), events
        if not expected and not any("fails" in event for event in events):
            assert control.calls[calls:] == []
        return outcomes

    def _edge(self, where) -> list[str]:
        """Return the event with which the owner's next call begins if a stop was
        posted: the stop is carried out.
        """
        return [ASKED] if self.asked and where == self.owner else []

    def _capture_ended(self, outcome) -> None:
        opener, self.capture = self.capture, None
        self.expected[opener.key] = outcome
        for member in self.members:
            if outcome == "failed":
                self.expected[member.key] = "failed"
            elif member in self.open and member.step != opener.step:
                self.expected[member.key] = "partial"
        self.spent += [
            entered
            for entered in (opener, *self.members)
            if entered in self.open and entered.step == opener.step
        ]
        self.members, self.asked, self.armed = [], False, None

    def _arm_events(self, step, state) -> list[str]:
        """Return the events with which the exit of a window of this step arms the next step."""
        if step + 1 not in SELECTED:
            return []
        if state == "armed" and self.armed != step + 1:
            return [ARM_OTHER]
        return [ARM]

    # -- events

    @precondition(lambda self: len(self.open) < MOST_OPEN)
    @rule(
        step=st.integers(0, 9),
        role=st.sampled_from([None, "rollout", "actor"]),
        where=st.sampled_from(["main", "worker"]),
        fault=st.sampled_from([None, None, None, "prepare", "start", "start twice", "busy"]),
    )
    def enter(self, step, role, where, fault=None) -> None:
        entered = Entered(profile_step(step, role=role), step, role, step in SELECTED)
        events = self._edge(where)
        if events:
            self._capture_ended("complete")
        if not entered.selected:
            late = self.armed is not None and step > self.armed
            events.append(
                "enter, not selected, of a later step than the armed one" if late else "enter, not selected"
            )
            if late:
                self.armed = None
        else:
            self.entered[step, role] += 1
            entered.number = self.entered[step, role]
            events.append(self._enter_selected(step, fault))
        outcome = self._happens(events, entered.window.__enter__, where)[-1]
        self.open.append(entered)
        if entered.selected:
            self._entered(entered, outcome, where)
        for call in ("arm", "start"):
            assert not control.raising[call]

    def _enter_selected(self, step, fault) -> str:
        if self.capture is not None:
            return "enter, selected"
        if any(entered.step == step for entered in self.spent):
            return "enter, selected, the step's capture has ended while its windows are open"
        if self.armed is not None and self.armed != step:
            return "enter, selected, armed for another step"
        if fault == "prepare" and self.armed is None:
            control.fail("arm")
            return "enter, prepare fails"
        if fault == "busy":
            control.fail("start", Busy("another profiler"))
            return "enter, another profiler runs"
        if fault == "start twice" and self.armed is not None:
            control.fail("start", BackendError("no"), OSError("no"))
            return "enter, start fails twice"
        if fault == "start":
            control.fail("start")
            return "enter, start fails"
        return "enter, selected"

    def _entered(self, entered, outcome, where) -> None:
        self.expected[entered.key] = outcome
        self.body_errors[entered.key] = None
        if outcome == "joined":
            self.members.append(entered)
        elif outcome == "complete":
            self.capture, self.members, self.armed = entered, [], None
            self.owner = where
        elif outcome == "failed" or control.calls[-1:] == ["abort"]:
            self.armed = None

    @precondition(lambda self: self.open)
    @rule(
        index=st.integers(0, MOST_OPEN - 1),
        where=st.sampled_from(["main", "worker"]),
        fault=st.sampled_from([None, None, None, "stop", "export"]),
        raises=st.booleans(),
        arming=st.sampled_from([None, None, "prepare"]),
    )
    def leave(self, index, where, fault=None, raises=False, arming=None) -> None:
        entered = self.open[index % len(self.open)]
        events = self._edge(where)
        if events:
            self._capture_ended("complete")
        self.open.remove(entered)
        last = self._is_last(entered)
        refused = last and control.thread_bound and where != self.owner
        if not last:
            events.append("exit, any other")
        elif refused:
            if self.asked:
                events.append("exit, any other")  # its end was requested before
            else:
                events.append(f"{LAST}, on a thread that cannot stop it")
        elif fault:
            control.fail(fault)
            events.append(f"{LAST}, {fault} fails")
        else:
            events.append(LAST)
        if last and not refused:
            self._capture_ended(self._cell(events[-1], "recording").outcome)
        self.asked = self.asked or refused
        self.spent = [other for other in self.spent if other is not entered]
        state = "recording" if self.capture else "armed" if self.armed is not None else "idle"
        arm = self._arm_events(entered.step, state)
        if arm and arming and state == "idle":
            control.fail("arm")
            arm, armed = ["arm, prepare fails"], None
        elif arm and state != "recording":
            armed = entered.step + 1
        else:
            armed = self.armed
        error = ValueError("mine") if raises else None
        self._happens(events + arm, lambda: entered.leave(error), where)
        self.armed = armed
        if raises and entered.key in self.body_errors:
            self.body_errors[entered.key] = "ValueError: mine"

    def _is_last(self, entered) -> bool:
        """Return whether the capture ends with the exit of this window."""
        capture = self.capture
        if capture is None or entered.step != capture.step or entered not in (capture, *self.members):
            return False
        return not any(
            other in self.open and other.step == capture.step for other in (capture, *self.members)
        )

    @rule(where=st.sampled_from(["main", "worker"]))
    def leave_twice(self, where) -> None:
        window = profile_step(2)
        self._happens(["exit, a second time"], window.stop, where)

    @rule(where=st.sampled_from(["main", "worker"]), how=st.sampled_from(["region", "mark", "tick"]))
    def edge(self, where, how="tick") -> None:
        def region():
            with stepprof.region("r"):
                pass

        act = {"region": region, "mark": lambda: stepprof.mark("m"), "tick": stepprof.tick}[how]
        events = self._edge(where)
        self._happens(events, act, where)
        if events:
            self._capture_ended("complete")

    @precondition(lambda self: self.capture and not self.asked)
    @rule()
    def cap(self) -> None:
        bound = control.thread_bound

        def look() -> None:
            control.size = 2000
            self.session.background.round()
            control.size = 0

        self._happens(
            ["limit reached, on a thread that cannot stop the capture" if bound else "limit reached"],
            look,
            "other",
        )
        if bound:
            self.asked = True
        else:
            self._capture_ended("complete")

    def _can_hand_over(self) -> bool:
        if (
            self.capture is None or control.thread_bound or self.spent
        ):  # a window of a spent step does not wait
            return False
        mine = [
            entered
            for entered in (self.capture, *self.members)
            if entered in self.open and entered.step == self.capture.step
        ]
        return len(mine) == 1 and len(self.open) < MOST_OPEN

    @precondition(lambda self: self._can_hand_over())
    @rule(end=st.booleans(), step=st.sampled_from(SELECTED), bounded=st.booleans())
    def hand_over_on_another_thread(self, end=False, step=3, bounded=False) -> None:
        """Let the backend's stop take long on another thread, while other events happen."""
        (last,) = [e for e in (self.capture, *self.members) if e in self.open and e.step == self.capture.step]
        before = len(self.log)
        control.hold("stop")
        stopping = self.worker.submit(last.leave)
        assert control.reached["stop"].wait(10)
        self.open.remove(last)
        self._capture_ended(self._cell(LAST, "recording").outcome)
        try:
            for passing in (1, 5, 6):
                entered = Entered(profile_step(passing), passing, None, False)
                self._happens(["enter, not selected"], entered.window.__enter__)
                arm = [ARM] if passing + 1 in SELECTED else []
                self._happens(["exit, any other", *arm], entered.leave)
            self._happens(["exit, a second time"], profile_step(2).stop)
            self._happens([], stepprof.tick)
            for entered in self.open[:1]:
                self.open.remove(entered)
                arm = [ARM] if entered.step + 1 in SELECTED else []
                self._happens(["exit, any other", *arm], entered.leave)
            if bounded:
                self._give_up_waiting(step)
            waiting, second = self._wait(step, end)
        finally:
            control.release("stop")
        stopping.result(30)
        waiting.result(30)
        arm = self._arm_events(last.step, "idle")
        lines = self.log[before:]
        assert transitions(lines)[:2] == self._cell(LAST, "recording").path("recording")
        if second is None:
            return
        rest = transitions(lines)[2:]
        direct = self._cell("enter, selected", "idle").path("idle")
        armed = [("idle", "armed")], [("armed", "recording")]
        if not arm:
            assert rest == direct
        else:  # the arming for the next step and the waiting window come in either order
            assert rest in (direct, armed[0] + armed[1])
        self.open.append(second)
        self._entered(second, "complete", "other")

    def _give_up_waiting(self, step) -> None:
        entered = self._selected(step, "rollout")
        event = "enter, selected, flushing does not end in time"
        (outcome,) = self._happens([event], lambda: entered.window.__enter__(EarlyEngines(3600.0)))
        self.expected[entered.key], self.body_errors[entered.key] = outcome, None
        entered.leave()

    def _selected(self, step, role) -> Entered:
        self.entered[step, role] += 1
        return Entered(profile_step(step, role=role), step, role, True, self.entered[step, role])

    def _wait(self, step, end):
        """Let a selected window, or the end of the run, wait for the stop."""
        assert self._cell("shutdown" if end else "enter, selected", "flushing").effect == "wait"
        if end:
            waiting, entered = self.other.submit(self._end), None
        else:
            entered = self._selected(step, "actor")
            waiting = self.other.submit(entered.window.__enter__)
        time.sleep(0.01)
        assert not waiting.done()
        assert stepprof.state().status == "flushing"
        return waiting, entered

    @rule(where=st.sampled_from(["main", "worker"]))
    def shut_down(self, where) -> None:
        """End the run, whatever is open, and begin the next one."""
        if self.asked:
            self.edge(self.owner)
        where = self.owner if self.capture and control.thread_bound else where
        left = list(self.open)
        (outcome,) = self._happens(["shutdown"], stepprof.shutdown, where)
        if self.capture:
            self._capture_ended(outcome)
        self._check_outcomes()
        self._init()
        for entered in left:  # these windows belong to the run that has ended
            self._happens(["exit, any other"], entered.leave)

    def _end(self) -> None:
        stepprof.shutdown()
        self._check_outcomes()
        self._init()

    # -- invariants

    def _check_outcomes(self) -> None:
        """Each window has one entry in the manifest, with the predicted outcome."""
        found = windows(self.session)
        counts = Counter((w["step"], w["role"], w["occurrence"]) for w in found)
        assert set(counts.values()) <= {1}
        assert {(w["step"], w["role"], w["occurrence"]): w["status"] for w in found} == self.expected
        assert {(w["step"], w["role"], w["occurrence"]): w["body_error"] for w in found} == self.body_errors
        for window in found:
            assert bool(window["artifacts"]) == (
                window["status"] in ("complete", "partial") and window["capture"] is None
            )
            assert (
                window["error"]
                if window["status"] in ("failed", "skipped", "partial")
                else not window["error"]
            )

    @invariant()
    def the_state_is_what_the_machine_is_in(self) -> None:
        state, capturer = stepprof.state(), self.session.local.capturer
        assert state.status in STATES
        assert state.status == capturer.machine.state
        assert state.status == (
            "recording" if self.capture else "armed" if self.armed is not None else "idle"
        )
        assert state.step == (self.capture.step if self.capture else self.armed)
        assert (state.backend is None) == (state.status == "idle")

    @invariant()
    def the_backend_is_called_in_a_legal_order(self) -> None:
        assert control.violations == []
        assert not any(line["event"] == "internal.error" for line in self.log)

    @invariant()
    def nothing_grows(self) -> None:
        capturer = self.session.local.capturer
        self._on(
            "other", self.session.background.round
        )  # exports that wait for a window to begin are submitted there
        held = 0 if capturer.capture is None else len(capturer.capture.open)
        assert held <= len(self.open)
        assert len(capturer._spent) <= MOST_OPEN + 1
        assert capturer.exports.pending == ()
        assert self.session.local.watch.tickets == []

    def teardown(self) -> None:
        if hasattr(self, "session"):
            with self.kept:
                self.shut_down("main")


@pytest.fixture
def plugin(tmp_path_factory, monkeypatch):
    """Install the backend `faulty`."""
    folder = tmp_path_factory.mktemp("plugin")
    install(folder)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("plugin")
class TestEveryPair:
    @pytest.mark.timeout(0)  # the number of sequences is configurable; each wait in them is limited
    def test_random_sequences(self) -> None:
        """In random sequences of events, each event makes the transitions in the
        table, and the invariants hold.
        """
        run_state_machine_as_test(
            Sequences,
            settings=settings(
                max_examples=SEQUENCES,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    def test_every_cell(self) -> None:
        """Scripts visit each cell of the table, also those that are rare in random sequences. Only the
        fork's row has its own test.
        """
        Sequences.visited.clear()
        for thread_bound in (False, True):
            for script in (arming, entering, failing, capping, handing_over, ending):
                machine = Sequences()
                machine.begin(thread_bound)
                try:
                    script(machine)
                finally:
                    machine.teardown()
        cells = {(event, state) for event, row in TABLE.items() for state, cell in row.items() if cell}
        missing = cells - Sequences.visited
        assert {event for event, _ in missing} == {"os.fork, in the child"}


def step_of(machine, step, **faults) -> None:
    """Enter and leave a window of this step on the main thread."""
    machine.enter(step, None, "main", faults.pop("enter", None))
    machine.leave(len(machine.open) - 1, "main", **faults)


def arming(m) -> None:
    """Arm in each state."""
    step_of(m, 1, arming="prepare")
    step_of(m, 1)
    step_of(m, 1)
    step_of(m, 6)
    step_of(m, 1, arming="prepare")
    step_of(m, 1)
    m.enter(2, None, "main")
    step_of(m, 1)
    step_of(m, 6)
    m.leave(0, "main")
    step_of(m, 9)


def entering(m) -> None:
    """Enter, leave, and leave twice in each state."""
    m.leave_twice("main")
    step_of(m, 0)
    step_of(m, 7)
    step_of(m, 1)
    step_of(m, 0)
    m.leave_twice("worker")
    step_of(m, 7)
    step_of(m, 1)
    m.enter(2, None, "main")
    m.enter(2, "actor", "worker")
    m.enter(3, "actor", "worker")
    m.enter(5, None, "worker")
    m.leave_twice("main")
    m.leave(0, "main")
    m.leave(0, "worker", raises=True)
    m.edge("main")
    m.edge("worker", "region")


def failing(m) -> None:
    """Let the backend fail in each way, in each state."""
    for fault in ("prepare", "start", "busy"):
        step_of(m, 3, enter=fault)
    for fault in ("start", "start twice", "busy"):
        step_of(m, 1)
        step_of(m, 2, enter=fault)
    for fault in ("stop", "export"):
        step_of(m, 8, fault=fault)


def capping(m) -> None:
    """Reach a limit, and enter more windows of the same step."""
    m.enter(2, None, "main")
    m.cap()
    m.edge("main")
    step_of(m, 2)
    m.enter(6, None, "main")
    m.leave(len(m.open) - 1, "main")
    step_of(m, 2)


def handing_over(m) -> None:
    """Let all events happen while another thread stops a capture."""
    m.enter(2, None, "main")
    if control.thread_bound:
        m.leave(0, "worker")
        m.edge("main", "mark")
        return
    m.enter(3, "rollout", "main")
    m.hand_over_on_another_thread(bounded=True)
    m.shut_down("main")
    m.enter(2, None, "main")
    m.hand_over_on_another_thread(end=True)


def ending(m) -> None:
    """End the run in each state."""
    m.shut_down("main")
    step_of(m, 1)
    m.shut_down("main")
    m.enter(2, None, "main")
    m.shut_down("main")


FORK = """
import os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import stepprof
from stepprof.instrument.context import cell

class Slow:
    name, thread_bound = "slow", False
    reached, released = threading.Event(), threading.Event()

def child(expected):
    assert stepprof.state().status == expected, stepprof.state()
    pid = os.fork()
    if pid == 0:
        ok = cell.session is None and cell.recorder is None and stepprof.state().status == "idle"
        with stepprof.profile_step(2), stepprof.region("r"):
            stepprof.tick()
        stepprof.shutdown()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert stepprof.state().status == expected

stepprof.init({"steps": "2", "backend": "null", "min_free_memory": "none"})
child("idle")
with stepprof.profile_step(1):
    pass
child("armed")
window = stepprof.profile_step(2).start()
child("recording")
backend = cell.session.local.capturer.backend
stop = backend.stop
def slow(*arguments):
    Slow.reached.set()
    Slow.released.wait(10)
    return stop(*arguments)
backend.stop = slow
thread = threading.Thread(target=window.stop)
thread.start()
Slow.reached.wait(10)
child("flushing")
Slow.released.set()
thread.join()
stepprof.shutdown()
print(sorted(os.listdir("stepprof-runs")), len(os.listdir(next(os.scandir("stepprof-runs")).path)))
"""


class TestFork:
    def test_the_child_has_no_session(self, run_script) -> None:
        """In each state of the parent, the child has no session, and the state of the parent is unchanged."""
        assert {cell.effect for cell in TABLE["os.fork, in the child"].values()} == {"no session"}
        run_script(FORK).check()


class TestPage:
    @pytest.mark.parametrize("name", ["states.md", "how-it-works.md"])
    def test_the_diagram_is_the_machines(self, name) -> None:
        """Each page shows the transitions of the state machine. `python docs/make_states.py` updates them."""
        made = runpy.run_path(str(PAGE.with_name("make_states.py")))
        text = PAGE.with_name(name).read_text()
        assert made["with_diagram"](text) == text
        assert "armed --> recording: start" in text

    def test_the_table_is_whole(self) -> None:
        """The table has a column for each state, and each cell has a known effect and outcome."""
        known = re.compile(r"nothing|refused|wait|join|no session|(-> (idle|armed|recording|flushing) ?)+")
        for event, row in TABLE.items():
            assert tuple(row) == STATES, event
            for cell in row.values():
                assert cell is None or known.fullmatch(cell.effect), event
                assert cell is None or cell.outcome in (
                    None,
                    "complete",
                    "joined",
                    "partial",
                    "skipped",
                    "failed",
                )
