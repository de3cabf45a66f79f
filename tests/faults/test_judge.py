"""The campaign detects faults: the facts of a good run are falsified, and stepprof itself is sabotaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults import checking
from faults.checking import problems
from faults.engines import SimEngine
from faults.judge import broken, slow
from faults.plan import Act, Block, EnginePlan, Fault, Plan
from faults.play import Facts, play
from stepprof.remote.core import window_group
from stepprof.remote.core.engine_target import EngineTarget
from stepprof.remote.core.manifest_entries import Entries
from stepprof.remote.core.registry import Fleet
from stepprof.remote.core.window_group import Bracket

GOOD = Plan(
    engines=(EnginePlan(), EnginePlan(result="nothing")),
    ops=(Block(2, ops=(Block(2, ops=(Act("pause"),)),)), Block(4)),
    patient=True,
)


def _call(facts: Facts, verb: str) -> Any:
    """Return the first call of a verb to the first engine."""
    return next(call for call in facts.engines[0].calls if call.verb == verb)


def _without(engine: SimEngine, verb: str) -> None:
    engine.calls[:] = [call for call in engine.calls if call.verb != verb]


def _entry(facts: Facts, status: str) -> dict[str, Any]:
    """Return the first entry with an outcome."""
    return _first(facts.fragments, status)


def _first(fragments: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return next(e for fragment in fragments for e in fragment["engines"] if e["status"] == status)


def _set(what: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(what, name, value)


def _failed_stop_without_a_close(facts: Facts) -> None:
    _without(facts.engines[0], "close")
    for call in facts.engines[0].calls:
        call.failed = "refused"
    _set(facts.engines[0].captures[-1], ended=None, cause=None)


FALSE: dict[str, tuple[Callable[[Facts], object], str]] = {
    "a start that was answered late": (
        lambda facts: _set(_call(facts, "start"), answered=facts.windows[0].began + 1),
        "after the body began",
    ),
    "a start that was not answered": (lambda facts: _set(_call(facts, "start"), failed="lost"), "its start"),
    "a stop before the end of the body": (
        lambda facts: _set(_call(facts, "stop"), sent=facts.windows[0].ended - 1),
        "before the body ended",
    ),
    "a stop without an answer": (lambda facts: _set(_call(facts, "stop"), failed="lost"), "its stop was not"),
    "an engine without a stop": (lambda facts: _without(facts.engines[0], "stop"), "was left recording"),
    "a capture that another driver took": (
        lambda facts: _set(facts.engines[0].captures[0], cause="stolen"),
        "ended otherwise: stolen",
    ),
    "a capture that began within the body": (
        lambda facts: _set(facts.engines[0].captures[0], began=facts.windows[0].began + 1),
        "its capture began within the body",
    ),
    "a capture that ended within the body": (
        lambda facts: _set(facts.engines[0].captures[0], ended=facts.windows[0].ended - 1),
        "its capture ended within the body",
    ),
    "a beginning before the capture's": (
        lambda facts: _entry(facts, "complete").update(start_unix_ns=1),
        "start_unix_ns",
    ),
    "an end after the capture's": (
        lambda facts: _entry(facts, "complete").update(end_unix_ns=2**63),
        "end_unix_ns",
    ),
    "a window that joined what is not whole": (
        lambda facts: _set(facts.engines[0].captures[0], cause="died"),
        "no capture has all of this window",
    ),
    "an engine of which nothing is said": (
        lambda facts: facts.fragments[0]["engines"].pop(),
        "has 0 entries",
    ),
    "an engine of which it is said twice": (
        lambda facts: facts.fragments[0]["engines"].append(facts.fragments[0]["engines"][0]),
        "has 2 entries",
    ),
    "no outcome": (lambda facts: _entry(facts, "complete").update(status="done"), "no such outcome"),
    "lost what was answered": (
        lambda facts: _entry(facts, "complete").update(status="lost", stop_seconds=None),
        "does not say what came of it",
    ),
    "a file in no manifest": (
        lambda facts: facts.files.append(("run1/step-000002/rollout/odd.json", 1)),
        "odd.json is in no manifest",
    ),
    "a file that came late and is in no manifest": (
        lambda facts: facts.settled_files.append(("run1/step-000002/rollout/late.json", 1)),
        "late.json is in no manifest, in the end",
    ),
    "an entry that waits for ever": (
        lambda facts: facts.settled_fragments[0]["engines"][0].update(pending=True),
        "there is none to come",
    ),
    "an outcome that is false in the end": (
        lambda facts: _first(facts.settled_fragments, "complete").update(end_unix_ns=2**63),
        "in the end: its end_unix_ns",
    ),
    "a capture that goes on after its stop": (
        lambda facts: _set(facts.engines[0].captures[-1], ended=None, cause=None),
        "though it answered",
    ),
    "a capture that goes on after a stop that failed": (
        _failed_stop_without_a_close,
        "its driver was not closed",
    ),
    "a file of another size": (
        lambda facts: _entry(facts, "complete")["artifacts"][0].update(bytes=7),
        "its manifest says 7",
    ),
    "a file that is not there": (
        lambda facts: facts.files.remove(next(file for file in facts.files if "trace" in file[0])),
        "not on disk",
    ),
    "an empty step": (lambda facts: facts.folders.append("run1/step-000003"), "left without a manifest"),
    "a body that ran twice": (lambda facts: _set(facts.windows[0], bodies=2), "ran 2 times"),
    "a body that did not run": (lambda facts: _set(facts.windows[0], bodies=0), "ran 0 times"),
    "what reached the job": (lambda facts: facts.windows[0].wrong.append("OSError()"), "reached the job"),
    "a state that is not left": (lambda facts: facts.machines.update(e0="armed"), "armed at the end"),
    "a state that is not shown": (lambda facts: facts.shown.append("state() shows {}"), "state() shows"),
    "a call beside another": (
        lambda facts: facts.engines[0].violations.append("stop during start"),
        "during",
    ),
    "a call that hangs": (lambda facts: _set(_call(facts, "clock"), answered=None), "never answered"),
    "an error of stepprof's own": (
        lambda facts: facts.lines.append({"event": "internal.error"}),
        "internal.error",
    ),
}


class TestFalsified:
    """The facts of a good run, with one of them changed."""

    def test_a_good_run_is_found_good(self, tmp_path: Path) -> None:
        """A good run has no problems; otherwise the tests below would prove nothing."""
        assert problems(GOOD) == []

    @pytest.mark.parametrize("what", FALSE)
    def test_a_false_statement_is_found(self, what: str, tmp_path: Path) -> None:
        """Each changed fact is reported with its own sentence."""
        facts = play(GOOD, tmp_path)
        change, sentence = FALSE[what]
        change(facts)
        assert any(sentence in problem for problem in broken(facts)), broken(facts)

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda facts: _set(facts.windows[0], entered=facts.windows[0].began - 10**11), "the enter of"),
            (lambda facts: _set(facts.windows[0], left=facts.windows[0].ended + 10**11), "the exit of"),
            (lambda facts: facts.seconds.append(("detach", 100.0, 0.0)), "detach took 100.000 s"),
        ],
    )
    def test_an_exceeded_time_limit_is_found(
        self, change: Callable[[Facts], object], sentence: str, tmp_path: Path
    ) -> None:
        """Each wait has its own limit, and exceeding it is reported."""
        facts = play(GOOD, tmp_path)
        assert slow(facts) == []
        change(facts)
        assert any(sentence in problem for problem in slow(facts))


def _faults(verb: str, *faults: Fault) -> Plan:
    return Plan(engines=(EnginePlan(faults=((verb, faults),)),), ops=(Block(2),))


async def _no_stop(self: EngineTarget, recording: Any, window: Any) -> None:
    recording.tell("partial", "its start was late")


async def _for_ever(gates: Any, timeout: float | None = None) -> bool:
    return await _passed(gates)


_passed = window_group.passed

SABOTAGE: dict[str, tuple[Plan, Any, str, Any, str]] = {
    "a late start is forgotten": (
        dataclasses.replace(_faults("start", Fault("late")), ops=(Block(2, ops=(Act("answered"),)),)),
        EngineTarget, "abandon_start", lambda self, recording, seconds: None, "after the body began",
    ),
    "a late start is not stopped": (
        _faults("start", Fault("late")), EngineTarget, "_stop", _no_stop, "was left recording",
    ),
    "a start whose answer was lost is not stopped": (
        _faults("start", Fault("raise", "owes stop")), EngineTarget, "_stop_for_sure", lambda self, recording: _nothing(), "was left recording",
    ),
    "the body does not wait for the start": (
        dataclasses.replace(_faults("start", Fault("late")), patient=True), Bracket, "wait_started", lambda self: None, "after the body began",
    ),
    "a window waits for ever": (_faults("start", Fault("hang")), window_group, "passed", _for_ever, "the enter of window 1"),
    "answers are not written": (
        dataclasses.replace(_faults("stop", Fault("late")), ops=(Block(2), Act("answered"), *(Act("pause"),) * 20)), Entries, "save_later", lambda self: None, "does not say what came of it",
    ),
    "folders stay": (
        Plan(ops=(Block(2), Act("armed")), patient=True), Fleet, "unused", lambda self, target, window: None, "left without a manifest",
    ),
}  # fmt: skip


async def _nothing() -> None:
    return None


class TestSabotage:
    """stepprof with one part replaced by a faulty one."""

    @pytest.mark.parametrize("what", SABOTAGE)
    def test_a_missing_invariant_is_found(self, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The plan has no problems without the sabotage, and the expected problem with it."""
        plan, owner, name, instead, sentence = SABOTAGE[what]
        assert problems(plan) == []
        monkeypatch.setattr(owner, name, instead)
        monkeypatch.setattr(checking, "TRIES", 1)
        found = problems(plan)
        assert any(sentence in problem for problem in found[:-1]), found
