"""An interrupt (Ctrl-C, `ray.cancel`, a time-out by exception) at any call inside stepprof, in a job that survives it.

Python raises it where a function begins, among other places. So it is raised at the beginning of each function of ours in turn, while windows and regions come in and go out. Afterwards windows
are recorded as if nothing had been, on this thread and on others, and the end of the run waits for nothing.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from pathlib import Path

import pytest

import stepprof
from stepprof import profile_step, region
from stepprof.run.manifest import read_step

HERE = str(Path(stepprof.__file__).parent)
NOTHING_RAN_YET = "step.py:__exit__"
"""Before its first line: no `with` block in Python can tell of an interrupt there."""


class Interrupt(BaseException):
    """What the interrupt raises."""


def interrupt(act, number: int) -> str | None:
    """Raise at the n-th call of a function of stepprof on this thread; where that was, None where there were less."""
    left, place = number, None

    def look(frame, event, argument) -> None:
        nonlocal left, place
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HERE):
            here = f"{Path(code.co_filename).name}:{code.co_name}"
            left -= here != NOTHING_RAN_YET
            if left == 0 and place is None:
                place = here
                raise Interrupt

    before = sys.gettrace()
    sys.settrace(look)
    try:
        act()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return place


def window(step: int) -> None:
    """One step of a loop."""
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
def test_wherever_it_comes(tmp_path, more) -> None:
    """The steps after it are recorded, each by a capture of its own, and the run ends at once."""
    session = stepprof.init(
        {
            "backend": "null",
            "steps": "every 2",
            "output_dir": str(tmp_path),
            "min_free_memory": "none",
            **more,
        }
    )
    places, steps = [], []
    for number in itertools.count(1):
        step = 10 * number

        def loop(step=step) -> None:
            window(step - 1)
            window(step)

        place = interrupt(loop, number)
        if place is None:
            break
        window(step + 2)
        elsewhere(lambda step=step: window(step + 4))
        places.append(place)
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
    } <= set(places)
    for place, step in zip(places * 2, steps[::2] + steps[1::2], strict=True):
        told = {entry["role"]: entry["status"] for entry in read_step(session.path, step)["windows"]}
        assert told["actor"] == "complete", (place, step, told)
