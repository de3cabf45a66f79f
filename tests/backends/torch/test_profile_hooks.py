"""The job's own profile function, and cProfile, next to a recording with stacks."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

HOOKS = """
    import cProfile, sys
    import stepprof, torch

    def own(*_): pass

    stepprof.init({"steps": "2-3", "output_dir": "out", "backend": "torch", "torch": {"with_stack": True}})
    sys.setprofile(own)
    with stepprof.profile_step(2): torch.ones(4) + 1
    print("own", sys.getprofile() is own)
    sys.setprofile(None)
    profiler = cProfile.Profile()
    profiler.enable()
    before = sys.getprofile()
    with stepprof.profile_step(3): torch.ones(4) + 1
    print("cProfile", sys.getprofile() is before)
    profiler.disable()
    stepprof.shutdown()
"""


def test_a_recording_with_stacks_leaves_the_jobs_profiler_on(run_script) -> None:
    """A function of `sys.setprofile` is put back after the stop. cProfile cannot be: the step is not recorded."""
    ran = run_script(HOOKS, timeout=300).check()
    assert [line for line in ran.stdout.splitlines() if line.startswith(("own", "cProfile"))] == [
        "own True",
        "cProfile True",
    ]


CAPPED = """
    import sys, threading, time
    import stepprof, torch

    def own(*_): pass

    def step():
        sys.setprofile(own)
        with stepprof.profile_step(2):
            until = time.monotonic() + 3
            while time.monotonic() < until:
                with stepprof.region("work"): torch.ones(4) + 1
                time.sleep(0.01)
        print("own", sys.getprofile() is own)

    stepprof.init({"steps": "2", "output_dir": "out", "max_seconds": 0.5, "torch": {"with_stack": True}}, run_id="r")
    thread = threading.Thread(target=step)
    thread.start(); thread.join()
    stepprof.shutdown()
    import json
    print(json.load(open("out/r/step-000002/manifest/step-rank-0.json"))["windows"][0]["capped_by"])
"""


def test_a_limit_that_ends_the_recording(run_script) -> None:
    """If a limit ends the recording, the job's thread stops it at its next region: only there can its function be put back."""
    ran = run_script(CAPPED, timeout=300).check()
    assert ran.stdout.split("\n")[-3:-1] == ["own True", "max_seconds"]


OF_THREADS = """
    import sys, threading
    import stepprof, torch

    def own(*_): pass

    def work():
        begun.set()
        ended.wait()
        seen.append(sys.getprofile() is own)

    begun, ended, seen = threading.Event(), threading.Event(), []
    threading.setprofile(own)
    stepprof.init({"steps": "2-3", "output_dir": "out", "backend": "torch", "torch": {"with_stack": True}})
    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    for step in (2, 3):
        with stepprof.profile_step(step): torch.ones(4) + 1
    ended.set()
    thread.join()
    begun.clear()
    thread = threading.Thread(target=work)
    thread.start(); thread.join()
    print("seen", seen)
    stepprof.shutdown()
"""


def test_a_profile_function_of_all_threads_is_named_once(run_script) -> None:
    """torch ends the function of `threading.setprofile` in running threads: one line says so. Later threads have it."""
    ran = run_script(OF_THREADS, timeout=300).check()
    assert "seen [False, True]" in ran.stdout
    assert ran.stderr.count("ends the job's profile functions in other threads") == 1
