"""Test windows, regions and steps with the real torch_npu: the recorded data, and the calls that
reach CANN.
"""

from __future__ import annotations

import json

import pytest
from conftest import SESSION, Call

from stepprof.formats.npu_folder import missing_parts
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs


class TestWindow:
    def test_whole(self, npu):
        """The window is one session. Its folder is below the step's, and contains the data of host
        and device with step, role and rank.
        """
        npu.run(
            """
            init()
            use_device()
            for step in (1, 2, 3):
                with profile_step(step, role="actor"):
                    with region("update", batch=4):
                        work()
            """
        ).check()
        window = npu.window()
        assert (window["status"], window["error"], window["backend"]) == ("complete", None, "npu")
        folder = npu.folder_of()
        assert folder.parent.name == "rank-0.npu"
        assert folder.name.endswith("_ascend_pt")
        assert missing_parts(folder, on_host=True, on_device=True) is None
        (artifact,) = window["artifacts"]
        assert (
            artifact["bytes"] == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > 0
        )
        reported = json.loads((folder / "profiler_metadata.json").read_text())["stepprof"]
        assert (reported["step"], reported["role"], reported["rank"]) == (2, "actor", 0)
        assert npu.names() == SESSION
        assert npu.ranges() == ["(step 2 actor", "(update", "update)", "step 2 actor)"]
        assert not npu.left_over()

    def test_the_warm_up_comes_before_the_window(self, npu):
        """A step before the selected one changes nothing: the calls are those of one session with
        one warm-up.
        """
        npu.run(
            """
            init()
            use_device()
            with profile_step(1, role="actor"):
                pass
            print(stepprof.state().status, flush=True)
            with open("acl.log") as log:
                print(log.read().count("aclprofWarmup"), flush=True)
            with profile_step(2, role="actor"):
                work()
            """
        ).check()
        assert npu.names() == SESSION

    def test_several_in_a_row(self, npu):
        npu.run(
            """
            init()
            use_device()
            for step in range(1, 5):
                for role in ("rollout", "actor"):
                    with profile_step(step, role=role):
                        work()
            """,
            env={"STEPPROF_STEPS": "2-4"},
        ).check()
        for step in (2, 3, 4):
            assert {window["status"] for window in npu.windows(step)} == {"complete"}
        assert npu.names() == SESSION * 6
        assert not npu.left_over()

    def test_nested_roles_are_one_session(self, npu):
        npu.run(
            """
            init()
            use_device()
            with profile_step(2):
                with profile_step(2, role="rollout"):
                    work()
                with profile_step(2, role="actor"):
                    work()
            """
        ).check()
        assert [window["status"] for window in npu.windows()].count("joined") == 2
        assert npu.names() == SESSION
        roles = ["(step 2 rollout", "step 2 rollout)", "(step 2 actor", "step 2 actor)"]
        assert npu.ranges() == ["(step 2 step", *roles, "step 2 step)"]

    def test_an_exception_in_the_body(self, npu):
        """The exception reaches the caller. Every range is closed, and the next step is recorded."""
        ran = npu.run(
            """
            init()
            use_device()
            for step in (2, 3):
                try:
                    with profile_step(step, role="actor"):
                        with region("outer"):
                            with region("inner"):
                                work()
                                raise ValueError("mine")
                except ValueError as error:
                    print(error)
            """,
            env={"STEPPROF_STEPS": "2-3"},
        ).check()
        assert ran.stdout == "mine\nmine\n"
        assert npu.window()["body_error"] == "ValueError: mine"
        assert npu.names() == SESSION * 2
        one = ["(step 2 actor", "(outer", "(inner", "inner)", "outer)", "step 2 actor)"]
        assert npu.ranges() == [*one, *(text.replace("step 2", "step 3") for text in one)]

    def test_suspendable_regions_are_ranges(self, npu):
        """Regions of coroutines and generators are ranges as well. A number identifies each, so
        that ranges may end in any order and on any thread.
        """
        npu.run(
            """
            import asyncio
            init()
            use_device()
            async def wait(name, seconds):
                async with region(name):
                    await asyncio.sleep(seconds)
                    if name == "a":
                        raise ValueError
            async def both():
                return await asyncio.gather(wait("a", 0.3), wait("b", 0.1), return_exceptions=True)
            @region("samples")
            def samples():
                yield 1
                yield 2
            with profile_step(2, role="actor"):
                asyncio.run(both())
                generator = samples()
                next(generator)
                other = threading.Thread(target=lambda: list(generator))
                other.start()
                other.join()
                unfinished = samples()
                next(unfinished)
            unfinished.close()
            """
        ).check()
        assert npu.window()["status"] == "complete"
        assert npu.ranges() == [
            "(step 2 actor", "(a", "(b", "b)", "a)", "(samples", "samples)", "(samples", "samples)", "step 2 actor)",
        ]  # fmt: skip

    def test_names_that_mstx_does_not_take(self, npu):
        """A name that is too long, empty or not valid text gets a range with a changed name, and
        torch_npu prints nothing.
        """
        ran = npu.run(
            """
            init()
            use_device()
            with profile_step(2, role="actor"):
                for name in ("", "a\\0b", "x" * 200, "é" * 100, "\\ud800"):
                    with region(name):
                        pass
            """
        ).check()
        assert ran.stdout == ""
        assert npu.window()["status"] == "complete"
        begun = [call.detail.split(" ", 2)[2] for call in npu.calls("mstx") if "Start" in call.name]
        assert begun == ["step 2 actor", "(no name)", "a\ufffdb", "x" * 156, "é" * 78, "?"]

    def test_ranges_that_cannot_be_ended(self, npu):
        """If the end of one range fails, the other ranges and the session are still ended."""
        ran = npu.run(
            """
            import torch_npu
            ends, calls = torch_npu._C._mstx._range_end, []
            def once(*arguments):
                calls.append(1)
                if len(calls) == 1:
                    raise RuntimeError("not ended")
                ends(*arguments)
            torch_npu._C._mstx._range_end = once
            init()
            use_device()
            window = profile_step(2, role="actor").start()
            outer, inner = region("outer").__enter__(), region("inner").__enter__()
            window.stop()
            inner.__exit__(None, None, None)
            outer.__exit__(None, None, None)
            """
        ).check()
        assert npu.window()["status"] == "complete"
        assert npu.names() == SESSION
        assert "not ended" in ran.stderr
        ended = [call.detail.split(" ")[1] for call in npu.calls("mstx") if "End" in call.name]
        assert len(ended) == len(set(ended)) == 2

    def test_ranges_that_fail(self, npu):
        """If ranges cannot be started, the log reports it for the window and the first region. The
        window is recorded.
        """
        ran = npu.run(
            """
            import torch_npu
            def refuse(*arguments):
                raise RuntimeError("no mstx here")
            torch_npu._C._mstx._range_start_on_host = refuse
            init()
            use_device()
            with profile_step(2, role="actor"):
                for _ in range(3):
                    with region("update"):
                        work()
            """
        ).check()
        assert ran.stdout == ""
        assert npu.window()["status"] == "complete"
        assert ran.stderr.count("no mstx here") == 2, ran.stderr  # for the window and for the first region

    def test_a_process_without_a_device_gets_no_context(self, npu):
        """Arming creates no device context in a process that does not use a device yet."""
        ran = npu.run(
            """
            init()
            with profile_step(1):
                pass
            print(stepprof.state().status, torch.npu.is_initialized())
            with profile_step(2):
                work()
            """
        ).check()
        assert ran.stdout == "armed False\n"
        assert npu.window()["status"] == "complete"
        assert npu.names() == SESSION

    def test_the_output_of_the_job_is_its_own(self, npu):
        """torch_npu prints to stdout. The output contains the lines of the job and nothing else."""
        npu.run_twice(
            """
            init()
            use_device()
            def chatter():
                while not done.is_set():
                    print("thread", end=" ")
                    sys.stdout.flush()
                    time.sleep(0.001)
                    break
            done = threading.Event()
            threading.Thread(target=chatter).start()
            time.sleep(0.1)
            for step in (1, 2, 3):
                print("step", step)
                with profile_step(step, role="actor"):
                    print("[WARNING] of mine")
                    work()
            """
        )

    def test_region_as_capture(self, npu):
        npu.run(
            """
            init({"capture_per": "region", "regions": ["mini_batch"]})
            use_device()
            with profile_step(2, role="actor"):
                for _ in range(3):
                    with region("mini_batch"):
                        work()
            """
        ).check()
        assert npu.names()[: len(SESSION)] == SESSION
        assert len(npu.names()) % len(SESSION) == 0


class TestArmed:
    def test_an_armed_step_that_never_begins(self, npu):
        """The warm session is ended like a recorded one. No folder, thread or configuration of CANN
        is left.
        """
        ran = npu.run(
            """
            init()
            use_device()
            work()
            before = len(os.listdir("/proc/self/task"))
            with profile_step(1):
                pass
            assert stepprof.state().status == "armed"
            with profile_step(5):
                pass
            assert stepprof.state().status == "idle"
            print(len(os.listdir("/proc/self/task")) - before)
            with profile_step(2):
                work()
            """
        ).check()
        assert npu.window()["status"] == "complete"
        names = npu.names()
        assert names.count("aclprofInit") == names.count("aclprofFinalize")
        assert names == SESSION * (len(names) // len(SESSION))
        assert not npu.left_over()
        assert int(ran.stdout) <= 1  # the background thread of stepprof itself

    def test_the_end_of_the_job(self, npu):
        npu.leave = False
        npu.run(
            """
            init()
            use_device()
            with profile_step(1):
                pass
            assert stepprof.state().status == "armed"
            """
        ).check()
        assert npu.names() == SESSION
        assert not npu.left_over()


class TestEnd:
    def test_exit_in_a_window(self, npu):
        npu.leave = False
        npu.run(
            """
            init()
            use_device()
            profile_step(2, role="actor").start()
            work()
            """
        ).check()
        assert npu.window()["status"] == "partial"
        assert missing_parts(npu.folder_of(), on_host=True, on_device=True) is None
        assert npu.names() == SESSION

    def test_sigterm_in_a_window(self, npu):
        npu.leave = False
        running = npu.start(
            """
            init()
            use_device()
            with profile_step(2, role="actor"):
                work()
                print("in", flush=True)
                time.sleep(60)
            """
        )
        running.wait_for("in").send(15)
        assert running.wait().returncode == -15
        assert npu.window()["status"] == "partial"
        assert npu.names() == SESSION

    def test_forked_processes_end_nothing(self, npu):
        """A forked child that frees torch_npu's profile does not stop the session of its parent."""
        npu.leave = False
        npu.run(
            """
            init()
            use_device()
            with profile_step(2, role="actor"):
                work()
                child = os.fork()
                if not child:
                    import gc
                    stepprof.shutdown()
                    gc.collect()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                work()
            """
        ).check()
        assert npu.window()["status"] == "complete"
        assert npu.names() == SESSION
        assert len({call.pid for call in npu.calls()}) == 1

    def test_a_thread_that_may_not_stop(self, npu):
        """Another thread ends the window. The stop is posted to the thread that recorded, because
        torch_npu would otherwise record forever.
        """
        npu.run(
            """
            init()
            use_device()
            window = profile_step(2, role="actor").start()
            work()
            other = threading.Thread(target=window.stop)
            other.start()
            other.join()
            with region("next"):
                pass
            """
        ).check()
        assert npu.window()["status"] == "complete"
        assert npu.names() == SESSION
        assert len({call.thread for call in npu.calls()}) == 1

    @pytest.mark.parametrize("alive", [True, False])
    def test_a_thread_that_cannot_be_reached(self, npu, alive):
        """If the recording thread never stops the capture, it fails and the job ends as usual. Once
        that thread has ended, CANN is stopped and can record again.
        """
        npu.leave = False
        npu.run(
            f"""
            init()
            use_device()
            def record():
                profile_step(2, role="actor").start()
                work()
                recording.set()
                while {alive}:
                    time.sleep(0.01)
            recording = threading.Event()
            other = threading.Thread(target=record, daemon=True)
            other.start()
            recording.wait()
            if not {alive}:
                other.join()
            stepprof.shutdown()
            if not {alive}:
                init({{"output_dir": "others"}})
                with profile_step(2, role="actor"):
                    work()
            """
        ).check()
        assert npu.window()["status"] == "failed"
        assert "on another thread than the one that recorded" in npu.window()["error"]
        if not alive:
            (run,) = list_runs(npu.folder / "others")
            (window,) = read_step(run, 2)["windows"]
            assert window["status"] == "complete", window["error"]
            assert npu.names()[-len(SESSION) :] == SESSION
            assert "aclprofFinalize" in npu.names()[: -len(SESSION)]


def test_calls_are_read(npu):
    (npu.folder / "acl.log").write_text("12 3 4 aclprofInit /a b\n13 3 4 aclprofStop \n")
    assert npu.calls() == [Call(12, 3, 4, "aclprofInit", "/a b"), Call(13, 3, 4, "aclprofStop", "")]
