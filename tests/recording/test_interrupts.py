"""An interrupt (Ctrl-C, `ray.cancel`, a timeout by exception) at any call inside stepprof, in a job that
survives it. It reaches the job, whatever its class.

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
DROPPED = ("<genexpr>", "garbage.py:collected")
"""Nor in these and in what they call, where Python drops exceptions: in a callback of the garbage collector, and in a generator that it ends."""


class Interrupt(BaseException):
    """An exception such as KeyboardInterrupt."""


class TimedOut(Exception):
    """The time-out of a job."""


Call = tuple[str, int]
"""A function of stepprof, and the number of its earlier calls on this thread."""


@functools.cache
def place(code: CodeType) -> str | None:
    """Return the file and the name of a function of stepprof; None for other functions."""
    path = Path(code.co_filename)
    return f"{path.name}:{code.co_name}" if code.co_filename.startswith(HERE) else None


def interrupt(act, tried: set[Call], kind: type[BaseException] = Interrupt) -> Call | None:
    """Raise at the first call on this thread that was not tried before, and check that the exception reaches the
    caller. Return this call, or None if there is none.

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
        caller = frame
        while caller is not None:
            if (place(caller.f_code) or "").endswith(DROPPED):
                return
            caller = caller.f_back
        call = here, counts[here]
        counts[here] += 1
        if call not in tried:
            raised = call
            tried.add(call)
            raise kind

    before = sys.gettrace()
    sys.settrace(look)
    reached = False
    try:
        act()
    except kind:
        reached = True
    finally:
        sys.settrace(before)
    assert reached or raised is None, raised
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
    ("kind", "more"),
    [
        (Interrupt, {"export": "inline"}),
        (Interrupt, {"export": "thread", "join_steps": True}),
        (Interrupt, {"export": "inline", "capture_per": "region", "regions": ["update"]}),
        (TimedOut, {"export": "inline"}),
        (TimeoutError, {"export": "inline"}),
        (RuntimeError, {"export": "inline", "capture_per": "region", "regions": ["update"]}),
    ],
    ids=["inline", "joined", "regions", "timeout", "builtin-timeout", "error-in-regions"],
)
def test_an_interrupt_at_any_point_is_survived(tmp_path, kind, more) -> None:
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

        call = interrupt(loop, tried, kind)
        if call is None:
            break
        window(step + 2)
        elsewhere(lambda step=step: window(step + 4))
        calls.append(call)
        steps += [step + 2, step + 4]
    began = time.monotonic()
    # the end of a thousand windows takes seconds on a busy machine; an end that waits takes all of these
    stepprof.shutdown(100)
    assert time.monotonic() - began < 50
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


TIMEOUTS = """
    import ctypes, signal, sys, threading, time
    import torch, stepprof

    class TimedOut(Exception): pass
    kind, export = {"own": TimedOut, "builtin": TimeoutError}[sys.argv[1]], sys.argv[2]
    fired, matrix, steps = [], torch.ones(64, 64), iter(range(1, 10_000))

    def handler(number, frame):
        fired.append(1)
        raise kind("of the job")

    def send(target, seconds):
        time.sleep(seconds)
        fired.append(1)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(kind))

    def attempt(seconds, at_stop, from_thread):
        del fired[:]
        sender = threading.Thread(target=send, args=(threading.get_ident(), seconds))
        arm = sender.start if from_thread else lambda: signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            try:
                if not at_stop: arm()
                with stepprof.profile_step(next(steps)):
                    for _ in range(50): matrix @ matrix
                    if at_stop: arm()
                end = time.monotonic() + 1
                while not fired and time.monotonic() < end: time.sleep(0.0001)
                for _ in range(1000): pass
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                if from_thread: sender.join()
        except kind:
            return True
        return False

    signal.signal(signal.SIGALRM, handler)
    session = stepprof.init({"steps": "all", "output_dir": "out", "export": export, "backend": "torch"})
    with stepprof.profile_step(next(steps)): matrix @ matrix
    for at_stop in (False, True):
        for from_thread in (False, True):
            got = [attempt(0.0004 * (1 + n), at_stop, from_thread) for n in range(12)]
            print("at_stop", at_stop, "from_thread", from_thread, got.count(True), "of", len(got))
    last = next(steps)
    with stepprof.profile_step(last): matrix @ matrix
    stepprof.shutdown()
    import json, pathlib
    [found] = pathlib.Path(session.path).glob(f"step-*{last}/manifest/*.json")
    print("last", json.loads(found.read_text())["windows"][0]["status"])
"""


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "export"), [("own", "inline"), ("builtin", "inline"), ("own", "fork")])
def test_time_outs_of_the_job_reach_it_while_torch_starts_and_stops(run_script, kind, export) -> None:
    """An exception of a signal handler, or one that was sent to the thread, reaches the job. The next step is recorded."""
    ran = run_script(TIMEOUTS, kind, export, timeout=120).check()
    lines = ran.stdout.splitlines()
    attempts = [line for line in lines if line.startswith("at_stop")]
    assert len(attempts) == 4
    # Python's own code discards an OSError, as TimeoutError is one, in places such as os.path.exists
    whole = ("12 of 12", "11 of 12") if kind == "builtin" else ("12 of 12",)
    assert [line for line in attempts if not line.endswith(whole)] == []
    assert "last complete" in lines
