"""Plans in which stepprof once violated an invariant, each for a different reason."""

from __future__ import annotations

import time

import pytest

from faults.checking import problems
from faults.plan import Act, Block, EnginePlan, Fault, Fork, Plan
from stepprof.remote.core.manifest_entries import Entries

FOUND = {
    "a stop that is answered right before the end of the run is in the manifest": Plan(
        engines=(EnginePlan(faults=(("stop", (Fault("late"),)),)),), ops=(Block(2),)
    ),
    "a clock that is compared late keeps no answer from the manifest": Plan(
        engines=(EnginePlan(faults=(("clock", (Fault(), Fault("late"))),)),), ops=(Block(2),)
    ),
    "a window that joined a capture which then failed says so, after a detach too": Plan(
        ops=(Block(5, ops=(Block(5), Act("restart"), Block(3))), Act("detach"))
    ),
    "an engine that is armed again, for another step, leaves no folder of the step before": Plan(
        engines=(EnginePlan(), EnginePlan()), ops=(Block(2), Act("pause"), Block(2), Act("pause"), Block(4))
    ),
    "an arming that is under way at the end of the run leaves no folder": Plan(
        engines=(EnginePlan(faults=(("arm", (Fault(), Fault("hang"))),)), EnginePlan(how="router")),
        ops=(Block(2),),
    ),
    "folders of two roles that are removed at once do not keep their step": Plan(
        engines=(EnginePlan(), EnginePlan(role="reward")),
        ops=(Block(2), Block(2, role="reward"), Act("pause")),
    ),
    "a start that raised what says nothing of the engine is stopped": Plan(
        engines=(EnginePlan(faults=(("start", (Fault("raise", "value"),)),)),), ops=(Block(2), Block(3))
    ),
    "a call that the engine cancelled is one that failed": Plan(
        engines=tuple(
            EnginePlan(faults=((verb, (Fault("raise", "cancelled"),)),)) for verb in ("arm", "start", "stop")
        ),
        ops=(Block(2), Block(3)),
    ),
    "a router that is cancelled keeps no other engine from being recorded": Plan(
        engines=(
            EnginePlan(),
            EnginePlan(how="router", faults=(("expand", (Fault("raise", "cancelled"),) * 2),)),
        ),
        ops=(Block(2),),
    ),
    "a router that fails after its time is no error of stepprof's own": Plan(
        engines=(
            EnginePlan(how="router", faults=(("expand", (Fault("raise", "dead", early=False),)),)),
            EnginePlan(),
        ),
        ops=(Block(2), *(Act("pause"),) * 30),
    ),
    "an engine that a callable names no longer leaves no folder of the step that it was armed for": Plan(
        engines=(EnginePlan(how="callable"),), ops=(Block(2), Act("armed"), Act("die"), Block(2))
    ),
    "engines that a callable names are shown": Plan(
        engines=(EnginePlan(how="callable", kind="spans"),), ops=(Block(2), Act("detach"))
    ),
    "a window that is left open at the end is partial, also where it joined": Plan(
        ops=(Block(3, form="left open"), Fork((Act("pause"),), (Block(2, form="left open"),)))
    ),
    "a window that comes in while another thread ends the run opens nothing": Plan(
        engines=(EnginePlan(faults=(("clock", (Fault("hang"),)),)),),
        ops=(Block(4, role="reward", form="cancelled", ops=(Block(4, form="thread"),)),),
        coroutine=True,
        max_seconds=0.02,
        again=(Block(6), Act("detach")),
    ),
    "a window that joined a capture whose report fails is lost for good": Plan(
        engines=(EnginePlan(result="later", faults=(("wait", (Fault("raise", "busy"),)),)),),
        ops=(Block(2, ops=(Block(2),)), Act("pause")),
    ),
    "a report whose driver raises what ends a thread is lost": Plan(
        engines=(EnginePlan(result="later", faults=(("wait", (Fault("raise", "exit"),)),)),),
        ops=(Block(2), Act("pause"), Block(3)),
    ),
    "a synchronous window on an event loop waits for its engines": Plan(
        ops=(Block(2, form="sync"),), coroutine=True
    ),
    "a driver that hangs when it is closed does not hold up the end": Plan(
        engines=(EnginePlan(faults=(("close", (Fault("hang"),)),)),), ops=(Block(2),), shutdown=None
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_former_failures_stay_fixed(what: str) -> None:
    assert problems(FOUND[what]) == []


@pytest.mark.parametrize("seconds", [0.1, 0.3], ids=["before the end's bound", "after it"])
@pytest.mark.parametrize("coroutine", [False, True], ids=["threads", "coroutines"])
def test_a_folder_made_late_is_removed(coroutine, seconds, monkeypatch) -> None:
    """The folder for the next step is created slowly and exists only after the run has ended. It is
    removed.
    """
    make = Entries.places

    def make_slowly(entries: Entries, targets: list) -> list:
        made = make(entries, targets)
        time.sleep(seconds)
        return made

    monkeypatch.setattr(Entries, "places", make_slowly)
    assert problems(Plan(ops=(Block(2),), coroutine=coroutine)) == []
