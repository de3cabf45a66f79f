"""A job ends during a recording as it would without stepprof, and the manifest has
the outcome of the recording.
"""

from __future__ import annotations

import os
import signal
import textwrap
import time
from pathlib import Path

import pytest
from warm import HELD_LOCK

pytestmark = pytest.mark.torch


def eventually(condition, timeout=200):
    """Wait until a condition that depends on another process is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return True


class TestEndOfTheScript:
    def test_inside_a_window_that_was_never_stopped(self, warm):
        """If the script ends in an open window, its capture is kept as partial,
        and the script ends as usual.
        """
        warm.run_twice("""
            stepprof.init()
            profile_step(2, role="actor").start()
            work()
            print("the last line")
        """).check()
        window = warm.window()
        assert (window["status"], window["error"]) == ("partial", "the run ended while it was recording")
        assert warm.is_readable(window)

    def test_sys_exit_in_the_body(self, warm):
        """If the body calls `sys.exit`, the exit status is kept, and the capture is complete."""
        ran = warm.run_twice("""
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                sys.exit(7)
        """)
        assert ran.returncode == 7
        window = warm.window()
        assert (window["status"], window["body_error"]) == ("complete", "SystemExit: 7")
        assert warm.is_readable(window)

    def test_os_exit_in_the_body(self, warm):
        """If the body calls `os._exit`, no code of stepprof runs, and the manifest that
        was written ahead says lost.
        """
        ran = warm.run_twice("""
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                os._exit(9)
        """)
        assert ran.returncode == 9
        window = warm.window()
        assert window["status"] == "lost"
        assert window["error"] == "the process ended before the capture was stopped"

    def test_an_uncaught_exception(self, warm):
        """An exception ends the script with its own traceback. The capture is complete, and the
        manifest names the exception.
        """
        ran = warm.run_twice("""
            stepprof.init()
            with profile_step(2, role="actor"):
                with region("update"):
                    work()
                    raise ValueError("loss is nan")
        """)
        assert ran.returncode == 1
        assert "ValueError: loss is nan" in ran.stderr
        window = warm.window()
        assert (window["status"], window["body_error"]) == ("complete", "ValueError: loss is nan")
        assert warm.is_readable(window)

    def test_an_exception_reaches_the_caller_unchanged(self, warm):
        """The caller gets the same exception object, each call ran once, and the
        next selected step is recorded.
        """
        warm.run_twice(
            """
            stepprof.init()
            error, calls = KeyError("mine"), []
            @profile_step(step="step", role="actor")
            @region
            def update(step):
                calls.append(step)
                work()
                if step == 2:
                    raise error
            for step in (1, 2, 3):
                try:
                    update(step)
                except KeyError as caught:
                    print(caught is error, caught.__context__, caught.__cause__)
            print(calls)
            """,
            env={"STEPPROF_STEPS": "2-3"},
        ).check()
        assert warm.window(2)["body_error"] == "KeyError: 'mine'"
        assert warm.window(3)["status"] == "complete"
        assert warm.is_readable(warm.window(3), 3)

    def test_an_exception_in_another_thread(self, warm):
        """An exception on another thread changes neither the capture nor the result of the job."""
        ran = warm.run_twice("""
            stepprof.init()
            def fail():
                with region("reward"):
                    raise OSError("reward server")
            with profile_step(2, role="actor"):
                thread = threading.Thread(target=fail)
                thread.start()
                thread.join()
                work()
            print("on")
        """).check()
        assert "OSError: reward server" in ran.stderr
        assert warm.window()["status"] == "complete"

    @pytest.mark.parametrize("bound", [False, True])
    @pytest.mark.parametrize("regions", [False, True])
    def test_a_daemon_thread_is_recording(self, warm, bound, regions):
        """If a daemon thread records at the end, its capture is partial. It is failed if only that thread
        can stop it and enters no region.
        """
        warm.run_twice(
            """
            stepprof.init({"steps": 2, "output_dir": "runs", "torch": {"profile_memory": sys.argv[1] == "True"}})
            began = threading.Event()
            def record():
                with profile_step(2, role="actor"):
                    with region("forward"):
                        work()
                    began.set()
                    while True:  # without torch: an op in a daemon thread may end the process at its exit
                        if sys.argv[2] == "True":
                            with region("forward"):
                                pass
                        time.sleep(0.001)
            threading.Thread(target=record, daemon=True).start()
            began.wait()
            print("the end")
            """,
            str(bound),
            str(regions),
        ).check()
        window = warm.window()
        if bound and not regions:
            assert window["status"] == "failed"
            assert "on another thread than the one that recorded" in window["error"]
        else:
            assert window["status"] == "partial"
            assert warm.is_readable(window)


class TestSignals:
    def test_sigterm_kills_with_the_usual_status(self, warm):
        """SIGTERM stops and exports the capture as partial, and the process then dies of the signal."""
        ran = warm.run_twice("""
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                print("recording", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
        """)
        assert ran.returncode == -signal.SIGTERM
        window = warm.window()
        assert (window["status"], window["error"]) == ("partial", "SIGTERM")
        assert warm.is_readable(window)

    def test_open_regions_and_windows_are_in_the_spans(self, warm):
        """The regions and windows that SIGTERM interrupts last until the signal in the spans, which say so."""
        warm.run_twice("""
            stepprof.init()
            with profile_step(2, role="actor"):
                with region("ended"):
                    work()
                with region("outer"), region("inner"):
                    time.sleep(0.2)
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(60)
        """)
        spans = warm.spans()
        found = {each["name"]: each for each in spans if each["kind"] in ("region", "window")}
        assert {name: each.get("attrs") for name, each in found.items()} == {
            "ended": None,
            **{name: {"unfinished": True} for name in ("outer", "inner", "actor")},
        }
        assert all((each["step"], each["role"]) == (2, "actor") for each in found.values())
        assert all(0.2e9 <= found[name]["dur"] < 10e9 for name in ("outer", "inner", "actor"))

    @pytest.mark.parametrize("name", ["__main__", "stepprof.examples", "stepprof.examples.grpo"])
    def test_inside_a_decorated_function(self, warm, name):
        """SIGTERM inside a decorated function stops the capture at once, since neither the decorator nor an
        installed example defers it.
        """
        ran = warm.run(
            """
            stepprof.init()
            __name__ = sys.argv[1]
            @region
            def update():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
                print("put off")
                time.sleep(60)
            with profile_step(2, role="actor"):
                update()
            """,
            name,
        )
        assert (ran.returncode, ran.stdout) == (-signal.SIGTERM, "")
        assert warm.window()["error"] == "SIGTERM"

    @pytest.mark.parametrize("moment", ["to=armed", "to=recording", "to=flushing", "from=flushing"])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_sigterm_during_an_act_of_stepprof(self, warm, moment, number):
        """If the signal arrives while stepprof changes its state, the job dies of it, and
        the manifest has the outcome.
        """
        ran = warm.run(
            """
            stepprof.init()
            When(sys.argv[1], lambda: os.kill(os.getpid(), int(sys.argv[2])))
            with profile_step(2, role="actor"):
                work()
            time.sleep(300)
            """,
            moment,
            str(int(number)),
        )
        assert ran.returncode == -number
        window = warm.window()
        if number == signal.SIGTERM and moment in ("to=flushing", "from=flushing"):
            assert window["status"] == "complete"
            assert warm.is_readable(window)
        elif number == signal.SIGTERM:  # the recording had not begun
            assert window["status"] == "lost"
        else:
            assert window["status"] in ("failed", "partial", "complete")

    def test_sigterm_during_a_log_line(self, warm):
        """If SIGTERM interrupts a log line, the handler's own line follows that line."""
        ran = warm.run(
            """
            stepprof.init()
            When("loss", lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.1)), logger="app")
            with profile_step(2, role="actor"):
                work()
                logging.getLogger("app").warning("loss 0.5")
                time.sleep(300)
            """,
        )
        assert ran.returncode == -signal.SIGTERM
        assert ran.stderr.index("loss 0.5") < ran.stderr.index("signal.received")
        assert (warm.window()["status"], warm.window()["error"]) == ("partial", "SIGTERM")

    @pytest.mark.parametrize("ended", [False, True])
    def test_sigterm_still_kills_after_a_stop_on_another_thread(self, warm, ended):
        """After another thread stopped the capture or ended the session, SIGTERM still kills the process,
        although only the main thread can restore the handler.
        """
        ran = warm.run(
            """
            stepprof.init({"steps": "2", "output_dir": "runs", "max_seconds": 0.1})
            with profile_step(2, role="actor"):
                work()
                while stepprof.state().status != "idle":
                    time.sleep(0.01)
                wait_for_exports()
                if sys.argv[1] == "True":
                    thread = threading.Thread(target=stepprof.shutdown)
                    thread.start()
                    thread.join()
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(300)
            """,
            str(ended),
        )
        assert ran.returncode == -signal.SIGTERM
        assert (warm.window()["status"], warm.window()["capped_by"]) == ("complete", "max_seconds")

    def test_a_keyboard_interrupt_that_the_job_survives(self, warm):
        """An interrupt during any change of state reaches the job, and a later selected step is recorded."""
        warm.run(
            """
            stepprof.init()
            for step, moment in enumerate(("to=armed", "to=recording", "to=flushing", "from=flushing"), 2):
                When(moment, lambda: os.kill(os.getpid(), signal.SIGINT))
                try:
                    with profile_step(step, role="actor"):
                        work()
                    time.sleep(1)
                except KeyboardInterrupt:
                    print("interrupted", step, stepprof.state().status)
            with profile_step(6, role="actor"):
                work()
            """,
            env={"STEPPROF_STEPS": "2-6"},
        ).check()
        assert warm.window(6)["status"] == "complete"
        assert warm.is_readable(warm.window(6), 6)

    def test_a_users_handler_is_kept(self, warm):
        """A handler of the job for SIGTERM is kept, whether it was installed before `init` or in a window.
        stepprof leaves none behind.
        """
        warm.run_twice(
            """
            handler = lambda number, frame: print("mine")
            signal.signal(signal.SIGTERM, handler)
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                os.kill(os.getpid(), signal.SIGTERM)
                print(signal.getsignal(signal.SIGTERM) is handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with profile_step(3, role="actor"):
                signal.signal(signal.SIGTERM, handler)
                os.kill(os.getpid(), signal.SIGTERM)
            print(signal.getsignal(signal.SIGTERM) is handler)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with profile_step(4, role="actor"):
                os.kill(os.getpid(), signal.SIGTERM)
            print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with profile_step(5, role="actor"):
                pass
            print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
            """,
            env={"STEPPROF_STEPS": "2-5"},
        ).check()
        assert [warm.window(step)["status"] for step in (2, 3, 4, 5)] == ["complete"] * 4

    def test_a_second_sigterm(self, warm):
        """A second SIGTERM during the handling of the first one kills the
        process, and the capture is lost.
        """
        ran = warm.run(
            """
            stepprof.init()
            When("signal.received", lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(300)))
            with profile_step(2, role="actor"):
                work()
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(300)
            """,
        )
        assert ran.returncode == -signal.SIGTERM
        assert warm.window()["status"] == "lost"

    @pytest.mark.parametrize("inside", [False, True])
    def test_a_hanging_stop_delays_the_death_by_the_budget(self, warm, inside):
        """If the stop hangs, SIGTERM kills the process after its budget, whether it
        arrived before or during the stop.
        """
        ran = warm.run(
            """
            from stepprof.recording import exit_handlers
            exit_handlers.SIGTERM_SECONDS = 1.0
            def terminate():
                os.kill(os.getpid(), signal.SIGTERM)
            inside = sys.argv[1] == "True"
            stepprof.init()
            When("to=flushing", lambda: (inside and terminate(), time.sleep(300)))
            with profile_step(2, role="actor"):
                work()
                if not inside:
                    terminate()
            time.sleep(300)
            """,
            str(inside),
        )
        assert ran.returncode == -signal.SIGTERM
        assert warm.window()["status"] == "lost"

    def test_sigterm_while_another_thread_records(self, warm):
        """If another thread records and the main thread has had no capture, SIGTERM kills the
        process, and the capture is lost.
        """
        ran = warm.run_twice("""
            stepprof.init()
            began = threading.Event()
            def record():
                with profile_step(2, role="actor"):
                    work()
                    began.set()
                    time.sleep(60)
            threading.Thread(target=record, daemon=True).start()
            began.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        """)
        assert ran.returncode == -signal.SIGTERM
        assert warm.window()["status"] == "lost"

    def test_a_killed_process_is_lost_only_after_its_death(self, warm):
        """While the process lives, its window is recording. After SIGKILL it is lost."""
        running = warm.start("""
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                print("recording", flush=True)
                time.sleep(60)
        """).wait_for("recording")
        assert warm.window()["status"] == "recording"
        assert running.send(signal.SIGKILL).wait().returncode == -signal.SIGKILL
        window = warm.window()
        assert window["status"] == "lost"
        assert window["error"] == "the process ended before the capture was stopped"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_while_an_export_runs(self, warm, number):
        """If a signal kills the job during an export, the child finishes the
        file and updates the manifest.
        """
        running = warm.start("""
            stepprof.init()
            def stop():
                print("export", os.getpid(), flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            os.register_at_fork(after_in_child=stop)
            with profile_step(2, role="actor"):
                work()
            time.sleep(300)
        """).wait_for("\n")
        export = int(running.stdout.split()[1])
        try:
            eventually(lambda: warm.window()["status"] == "exporting")
            assert running.send(number).wait().returncode == -number
        finally:
            os.kill(export, signal.SIGCONT)
        eventually(lambda: not Path(f"/proc/{export}").exists())
        assert warm.window()["status"] == "complete"
        assert warm.is_readable(warm.window())

    def test_the_end_waits_for_an_export(self, warm):
        """The end of the script waits for the export. `shutdown(0)` does not wait for it."""
        slow = "os.register_at_fork(after_in_child=lambda: time.sleep(1))"
        warm.run_twice(f"""
            {slow}
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
            sys.exit(0)
        """).check()
        assert warm.window()["status"] == "complete"
        assert warm.is_readable(warm.window())
        ran = warm.run(f"""
            {slow}
            stepprof.init(run_id="second")
            with profile_step(2, role="actor"):
                work()
            stepprof.shutdown(0)
            print(len(os.listdir("runs/second/step-000002/actor")))
        """).check()
        assert ran.stdout == "0\n"

    @pytest.mark.parametrize("end", ["pass", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGTERM)"])
    def test_an_export_hangs_at_the_end(self, warm, end):
        """If the export's child hangs on a lock, the parent exports, at the end of
        the script and after SIGTERM.
        """
        script = f"""
            os.register_at_fork(after_in_child=lock.acquire)
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
                {end}
        """
        ran = warm.run_twice(HELD_LOCK + textwrap.dedent(script))
        window = warm.window()
        assert ran.returncode == (-signal.SIGTERM if "SIGTERM" in end else 0)
        assert window["status"] == ("partial" if "SIGTERM" in end else "complete")
        assert window["export_note"].startswith("exported in a thread: the export process hung")
        assert warm.is_readable(window)

    def test_an_orphan_that_hangs(self, warm):
        """If the job was killed and its export hangs, the export's process ends after its limit."""
        running = warm.start("""
            from stepprof.recording.export import executor, fork, job
            fork.LIFE_SECONDS = 1
            executor.HANG_SECONDS = 60
            lock = threading.Lock()
            lock.acquire()
            def hang(self, result):
                os.write(1, b"%d\\n" % os.getpid())
                lock.acquire()
            from stepprof.recording.capture import LocalCapture
            LocalCapture.exported_in_child = hang
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
            time.sleep(300)
        """).wait_for("\n")
        export = int(running.stdout)
        assert running.send(signal.SIGKILL).wait().returncode == -signal.SIGKILL
        eventually(lambda: not Path(f"/proc/{export}").exists())


CHILD = """
def child():
    '''What stepprof is in a forked child: nothing.'''
    states = [stepprof.state().status]
    with profile_step(2, role="actor"):
        with region("inside"):
            work(2)
            states.append(stepprof.state().status)
    stepprof.mark("m"); stepprof.tick(); stepprof.shutdown()
    return states == ["idle", "idle"] and "stepprof" not in str(getattr(signal.getsignal(signal.SIGTERM), "__module__", None))

def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child() else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class TestForks:
    def test_a_fork_in_every_state(self, warm):
        """A forked child has no session, in every state of the parent, and the
        parent's capture is complete.
        """
        warm.run_twice(
            CHILD
            + """
stepprof.init()
fork()
with profile_step(1, role="actor"):
    pass
fork()
When("to=flushing", lambda: None if os.environ.get("STEPPROF") else fork())
if os.environ.get("STEPPROF"):
    fork()
with profile_step(2, role="actor"):
    with region("outer"):
        fork()
        work(5_000)
fork()
"""
        ).check()
        window = warm.window()
        assert window["status"] == "complete"
        assert warm.is_readable(window)
        assert len(list((warm.run_path / "spans").iterdir())) == 1

    def test_dataloader_workers(self, warm):
        """Workers of a DataLoader have no session, and `terminate` ends a child at once. The
        parent's capture is complete.
        """
        ran = warm.run_twice(
            CHILD
            + """
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        return torch.tensor([index, int(child())])
def batches(**more):
    return torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork", **more)
def sleep():
    time.sleep(60)
stepprof.init()
for step in (1, 2, 3):
    with profile_step(step, role="actor"):
        work()
        for batch in batches():
            print(batch.tolist())
        process = torch.multiprocessing.get_context("fork").Process(target=sleep)
        process.start()
        began = time.monotonic()
        process.terminate()
        process.join()
        print(process.exitcode, time.monotonic() - began < 5)
"""
        ).check()
        assert "[0, 1]" in ran.stdout
        assert "[0, 0]" not in ran.stdout
        assert warm.window()["status"] == "complete"
        assert warm.is_readable(warm.window())

    def test_workers_with_a_session_of_their_own(self, warm):
        """A forked worker may call `init` and record, also one that was forked during a capture: torch's
        recorder is off in it.
        """
        ran = warm.run("""
            import multiprocessing
            settings = {"steps": "1-3", "ranks": "all", "output_dir": "runs"}
            def serve(step):
                stepprof.init(settings, rank=1, world_size=2, run_id="all")
                profile_step(step, role="reward").start()
                work()
            def serve_in_a_child(step):
                worker = multiprocessing.get_context("fork").Process(target=serve, args=(step,))
                worker.start()
                worker.join()
                print(worker.exitcode)
            stepprof.init(settings, run_id="all", rank=0, world_size=2)
            serve_in_a_child(1)
            with profile_step(2, role="actor"):
                work()
                serve_in_a_child(2)
            serve_in_a_child(3)
            stepprof.shutdown()
            serve_in_a_child(3)
        """).check()
        assert ran.stdout == "0\n" * 4
        assert [(window["rank"], window["status"]) for window in warm.windows(1)] == [(1, "partial")]
        assert warm.is_readable(warm.window(1), 1)
        actor, reward = warm.windows(2)
        assert (actor["status"], reward["status"]) == ("complete", "partial")
        assert warm.is_readable(actor)
        assert warm.is_readable(reward, 2)
        assert [window["status"] for window in warm.windows(3)] == ["partial", "partial"]
        assert all(warm.is_readable(window, 3) for window in warm.windows(3))
