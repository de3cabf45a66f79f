"""An interrupt (Ctrl-C, `ray.cancel`, a timeout by exception) at any call inside stepprof, in a job that
survives it.

Among other places, Python raises an interrupt where a function begins. The test raises one at the begin of
each function of stepprof in turn, while the job enters and leaves windows and regions. Later windows are
recorded on this thread and on others, and the end of the run does not wait.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType

import pytest

import stepprof
from stepprof import profile_step, region
from stepprof.run.manifest import read_step

HERE = str(Path(stepprof.__file__).parent)
NOTHING_RAN_YET = "step.py:__exit__"
"""No interrupt is raised at the call of this function, because a `with` block in Python could not see it."""


class Interrupt(BaseException):
    """The exception that stands for the interrupt."""


Call = tuple[str, int]
"""A function of stepprof, and the number of its earlier calls on this thread."""


@functools.cache
def place(code: CodeType) -> str | None:
    """Return the file and the name of a function of stepprof; None for other functions."""
    path = Path(code.co_filename)
    return f"{path.name}:{code.co_name}" if code.co_filename.startswith(HERE) else None


def interrupt(act, tried: set[Call]) -> Call | None:
    """Raise at the first call on this thread that was not tried before. Return this call, or None if there is
    none.

    A call is identified by its function and its number among the calls of that function. The number among all
    calls varies, because some calls are made on different threads.
    """
    counts: Counter[str] = Counter()
    raised: Call | None = None

    def look(frame, event, argument) -> None:
        nonlocal raised
        here = place(frame.f_code)
        if raised or event != "call" or here is None or here == NOTHING_RAN_YET:
            return
        call = here, counts[here]
        counts[here] += 1
        if call not in tried:
            raised = call
            tried.add(call)
            raise Interrupt

    before = sys.gettrace()
    sys.settrace(look)
    try:
        act()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return raised


def window(step: int) -> None:
    """Run one step of a training loop."""
    with profile_step(step, role="actor"), region("update"), profile_step(step, role="inner"):
        pass


def elsewhere(act) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "more",
    [
        {"export": "inline"},
        {"export": "thread", "join_steps": True},
        {"export": "inline", "capture_per": "region", "regions": ["update"]},
    ],
    ids=["inline", "joined", "regions"],
)
def test_an_interrupt_at_any_point_is_survived(tmp_path, more) -> None:
    """The steps after each interrupt are recorded, on this thread and on another
    one, and the run ends at once.
    """
    session = stepprof.init(
        {
            "backend": "null",
            "steps": "every 2",
            "output_dir": str(tmp_path),
            "min_free_memory": "none",
            **more,
        }
    )
    tried: set[Call] = set()
    calls, steps = [], []
    for number in itertools.count(1):
        step = 10 * number

        def loop(step=step) -> None:
            window(step - 1)
            window(step)

        call = interrupt(loop, tried)
        if call is None:
            break
        window(step + 2)
        elsewhere(lambda step=step: window(step + 4))
        calls.append(call)
        steps += [step + 2, step + 4]
    began = time.monotonic()
    stepprof.shutdown(10)
    assert time.monotonic() - began < 5
    assert stepprof.state().status == "idle"
    assert {
        "session.py:enter",
        "local_target.py:exit",
        "capture_controller.py:finish",
        "exclusive_access.py:release",
    } <= {place for place, _ in calls}
    for call, step in zip(calls * 2, steps[::2] + steps[1::2], strict=True):
        reported = {entry["role"]: entry["status"] for entry in read_step(session.path, step)["windows"]}
        assert reported["actor"] == "complete", (call, step, reported)
