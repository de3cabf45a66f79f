"""Imports of stepprof inside the user's own torch profile with stacks."""

from __future__ import annotations

import pickle
import sys
import threading

import pytest

from stepprof.untraced import Reference, untraced


def test_without_another_thread(mocker) -> None:
    """If no thread can be started, as at the end of the interpreter, this one imports."""
    torch = mocker.Mock(_is_profiler_enabled=True)
    mocker.patch.dict(sys.modules, {"torch.autograd.profiler": torch})
    mocker.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
    assert untraced(threading.current_thread) is threading.current_thread()


def test_an_error_of_the_job_while_it_waits_for_the_thread(mocker) -> None:
    """A time-out of the job may be a RuntimeError. It reaches the job, and the work is not done a second time."""
    torch = mocker.Mock(_is_profiler_enabled=True)
    mocker.patch.dict(sys.modules, {"torch.autograd.profiler": torch})
    done, finished = [], threading.Event()

    def work() -> None:
        done.append(threading.current_thread().name)
        finished.set()

    def look(frame, event, argument) -> None:
        if event == "call" and frame.f_code is threading.Event.wait.__code__:
            sys.settrace(None)
            raise RuntimeError("of the job")

    before = sys.gettrace()
    sys.settrace(look)
    try:
        with pytest.raises(RuntimeError, match="of the job"):
            untraced(work)
    finally:
        sys.settrace(before)
    assert finished.wait(20)
    assert done == ["stepprof-import"]


def test_a_reference_is_the_function_where_it_is_loaded() -> None:
    """A function that is sent to another process by its name."""
    assert pickle.loads(pickle.dumps(Reference(untraced))) is untraced


INSIDE = """
    import sys, torch
    from torch.profiler import profile

    what, tensor = sys.argv[1], torch.ones(8, 8)
    config = {"enabled": False} if what == "off" else {"steps": "2", "output_dir": "out", "backend": what}
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as profiler:
        import stepprof
        stepprof.init(config)
        for step in (1, 2, 3):
            with stepprof.profile_step(step), stepprof.region("r"):
                tensor @ tensor
        stepprof.attach("http://127.0.0.1:9", kind="vllm")
        stepprof.mark_request({})
        stepprof.shutdown()
    assert any(event.name == "aten::matmul" for event in profiler.events())
    print("the profile has ended")
"""


@pytest.mark.torch
@pytest.mark.timeout(400)  # torch compiles nothing ahead: the first profile imports a thousand modules
@pytest.mark.parametrize("what", ["off", "null", "torch"])
def test_the_users_profile_ends_as_without_stepprof(run_script, what) -> None:
    """The import of stepprof, `init`, `attach` and `shutdown` may be inside the profile, with any backend."""
    ran = run_script(INSIDE, what, timeout=300).check()
    assert "the profile has ended" in ran.stdout


LATER = """
    import sys, threading, time, torch
    import stepprof

    imported = []
    config = {"steps": "2", "output_dir": "out", "export": "thread"}
    stepprof.init(config)
    stepprof.attach("http://127.0.0.1:9", kind="sglang")

    def watch(event, details):
        thread = threading.current_thread().name
        if event == "exec" and thread not in ("MainThread", "stepprof-import"):
            imported.append((thread, details[0].co_filename))

    sys.addaudithook(watch)
    for step in (1, 2, 3):
        with stepprof.profile_step(step), stepprof.region("r"):
            torch.ones(8, 8) @ torch.ones(8, 8)
    stepprof.trigger(step=5)
    stepprof.shutdown()
    assert not imported, imported
"""


@pytest.mark.torch
def test_older_threads_import_nothing(warm) -> None:
    """What an export, a request, an engine or the end of the session needs is loaded before a profile of the user can begin."""
    warm.run(LATER).check()


class TestUntraced:
    def test_a_failure_is_raised_here(self) -> None:
        """Without a profile the function runs on the calling thread, and its exception is raised."""
        assert untraced(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            untraced(lambda: 1 // 0)
