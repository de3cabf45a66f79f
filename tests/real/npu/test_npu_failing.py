"""Test failures that torch_npu and CANN do not report: failed calls, other profilers, folders that
cannot be written. The job continues, and the manifest has the reason.
"""

from __future__ import annotations

import pytest
from conftest import SESSION

from stepprof.formats.npu_folder import missing_parts
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs

TWO = """
init()
use_device()
for step in (1, 2, 3):
    with profile_step(step, role="actor"):
        work()
print("done")
"""
BOTH = {"STEPPROF_STEPS": "2-3"}


class TestCann:
    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ("aclprofInit", "CANN made no PROF_ folder"),
            ("aclprofStart", "CANN made no PROF_ folder"),
            ("aclprofStop", "CANN did not end the recording"),
            ("aclprofFinalize", "CANN did not end the recording"),
            ("aclrtSynchronizeDeviceWithTimeout", "torch_npu's step failed"),
        ],
    )
    def test_a_call_fails(self, npu, call, reason):
        """A call of CANN fails once. This window fails with the error of CANN, and the next one is
        recorded.
        """
        ran = npu.run(TWO, env={**BOTH, "STEPPROF_ACL_FAIL": f"{call}=507899,1"}).check()
        assert ran.stdout == "done\n"
        window = npu.window()
        assert window["status"] == "failed"
        assert reason in window["error"]
        assert "507899" in window["error"]
        assert npu.window(3)["status"] == "complete"
        names = npu.names()
        assert names.count("aclprofInit") == names.count("aclprofFinalize") == 2
        assert names.index("aclprofFinalize") < names.index("aclprofInit", 1)
        assert not npu.left_over()

    @pytest.mark.parametrize("call", ["aclprofInit", "aclprofStart"])
    def test_a_call_that_fails_without_a_message(self, npu, call):
        """A call that fails without a message is detected by the missing files."""
        env = {**BOTH, "STEPPROF_ACL_FAIL": f"{call}=507899,1", "STEPPROF_ACL_SILENT": "1"}
        npu.run(TWO, env=env).check()
        assert "the device recorded nothing" in npu.window()["error"]
        assert npu.window(3)["status"] == "complete"

    @pytest.mark.parametrize("call", ["aclprofWarmup", "aclprofCreateConfig"])
    def test_a_warm_up_fails(self, npu, call):
        """CANN records without the warm-up, and the log contains its error."""
        ran = npu.run(TWO, env={**BOTH, "STEPPROF_ACL_FAIL": f"{call}=507899,1"}).check()
        assert [npu.window(step)["status"] for step in (2, 3)] == ["complete", "complete"]
        assert "npu.complained" in ran.stderr
        assert f"{call} failed" in ran.stderr

    def test_a_cann_that_always_fails_does_not_fail_the_job(self, npu):
        """Every window fails, and the job ends without an error."""
        npu.run(TWO, env={**BOTH, "STEPPROF_ACL_FAIL": "aclprofStart=507899"}).check()
        assert [npu.window(step)["status"] for step in (2, 3)] == ["failed", "failed"]
        assert missing_parts(npu.folder_of(), on_host=True) is None  # what the host recorded is kept


class TestFolder:
    def test_a_folder_that_cannot_be_made(self, npu):
        """torch_npu hides the error of the folder. The window fails with a reason, and the next one
        is recorded.
        """
        npu.run(
            """
            session = init()
            use_device()
            from pathlib import Path
            from stepprof.backends.npu.backend import NpuBackend
            makes = Path.mkdir
            def mkdir(self, *arguments, **options):
                # a file in its place: whoever is root may write everywhere
                made = makes(self, *arguments, **options)
                if self.name.startswith(".npu-") and wrong:
                    wrong.pop()
                    self.rmdir()
                    self.write_text("")
                return made
            Path.mkdir = mkdir
            wrong = [1, 1]
            for step in (2, 3):
                with profile_step(step, role="actor"):
                    work()
            """,
            env=BOTH,
        ).check()
        window = npu.window()
        assert window["status"] == "failed"
        assert "torch_npu" in window["error"]
        assert npu.window(3)["status"] == "complete"

    def test_the_disk_is_full(self, npu, small_disk):
        npu.run(
            """
            with open("disk/filler", "wb") as filler:
                init({"output_dir": "disk", "spans": False})
                use_device()
                with profile_step(2, role="actor"):
                    try:
                        while True:
                            filler.write(b"x" * 65536)
                            filler.flush()
                    except OSError:
                        pass
                    work()
            os.truncate("disk/filler", 0)
            with profile_step(3, role="actor"):
                work()
            """,
            env=BOTH,
        ).check()
        (run,) = list_runs(small_disk)
        first, second = (read_step(run, step)["windows"][0] for step in (2, 3))
        assert first["status"] in ("failed", "lost")  # the manifest itself may not have had the room
        assert second["status"] == "complete"

    def test_leases_cannot_be_made(self, npu):
        ran = npu.run(TWO.replace("init()", 'init(lease_dir="/dev/null/leases")')).check()
        assert "lease_dir" in ran.stderr
        assert npu.window()["status"] == "failed"


class TestOthers:
    def test_torch_and_npu_in_two_roles(self, npu):
        """Two roles with different backends record one after the other, and one inside the other."""
        npu.run(
            """
            init({"roles": {"rollout": {"backend": "torch"}}})
            use_device()
            with profile_step(2, role="rollout"):
                work()
            with profile_step(2, role="actor"):
                work()
            with profile_step(3, role="actor"):
                with profile_step(3, role="rollout"):
                    work()
            """,
            env=BOTH,
        ).check()
        second = {window["role"]: window for window in npu.windows()}
        assert {role: (w["status"], w["backend"]) for role, w in second.items()} == {
            "rollout": ("complete", "torch"),
            "actor": ("complete", "npu"),
        }
        assert sorted(window["status"] for window in npu.windows(3)) == ["complete", "joined"]

    def test_the_users_own_torch_profiler(self, npu):
        """A torch profiler of the user is not changed and gets its events. The window is skipped."""
        ran = npu.run(
            """
            init()
            use_device()
            with torch.profiler.profile() as mine:
                with profile_step(2, role="actor"):
                    work()
            assert len(mine.events()) > 20
            with profile_step(3, role="actor"):
                work()
            """,
            env=BOTH,
        ).check()
        window = npu.window()
        assert window["status"] == "skipped"
        assert "another torch profiler is running" in window["error"]
        assert npu.window(3)["status"] == "complete"
        assert "Traceback" not in ran.stderr

    @pytest.mark.parametrize("backend", ["npu", "torch"])
    def test_the_users_own_torch_npu_profiler(self, npu, backend):
        """If the user's profiler runs, or is only constructed, windows are skipped: dropping it
        would end stepprof's session.
        """
        npu.run(
            f"""
            init({{"backend": "{backend}"}})
            use_device()
            import torch_npu
            mine = torch_npu.profiler.profile(
                on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("mine", analyse_flag=False)
            )
            with profile_step(2, role="actor"):
                work()
            mine.start()
            with profile_step(3, role="actor"):
                work()
            mine.stop()
            with profile_step(4, role="actor"):
                work()
            """,
            env={"STEPPROF_STEPS": "2-4"},
        ).check()
        windows = [npu.window(step) for step in (2, 3, 4)]
        assert [window["status"] for window in windows] == ["skipped", "skipped", "complete"]
        assert all("torch_npu profiler" in window["error"] for window in windows[:1])
        (mine,) = (npu.folder / "mine").iterdir()
        assert missing_parts(mine, on_host=True, on_device=True) is None

    @pytest.mark.parametrize("warm_up", [True, False])
    def test_the_users_own_torch_npu_profiler_while_armed(self, npu, warm_up):
        """The user's profiler records into the warm session, which stepprof releases and does not
        end. Without a warm-up it has its own session.
        """
        npu.run(
            f"""
            init(warm_up={warm_up})
            use_device()
            import torch_npu
            with profile_step(1):
                pass
            assert stepprof.state().status == "armed"
            mine = torch_npu.profiler.profile(
                on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("mine", analyse_flag=False)
            )
            mine.start()
            with profile_step(2, role="actor"):
                work()
            mine.stop()
            with profile_step(3, role="actor"):
                work()
            """,
            env=BOTH,
        ).check()
        assert npu.window()["status"] == "skipped"
        assert npu.window(3)["status"] == "complete", npu.window(3)["error"]
        (mine,) = (npu.folder / "mine").iterdir()
        assert (missing_parts(mine, on_host=True) is None) is not warm_up

    def test_a_capture_that_a_user_ends(self, npu):
        """torch_npu allows any code to stop a profiler. If the user's code stops this capture, the
        window fails with that reason.
        """
        npu.run(
            """
            init()
            use_device()
            import gc
            import torch_npu
            with profile_step(2, role="actor"):
                work()
                torch_npu.profiler.profile()
                gc.collect()
                work()
            with profile_step(3, role="actor"):
                work()
            """,
            env=BOTH,
        ).check()
        window = npu.window()
        assert window["status"] == "failed"
        assert "another profiler ended this capture" in window["error"]
        assert npu.window(3)["status"] == "complete"

    @pytest.mark.parametrize("variable", ["PROFILER_SAMPLECONFIG", "PROFILING_MODE"])
    def test_msprof(self, npu, variable):
        """Under msprof, torch_npu's profiler does nothing and raises no error. The window fails
        with the name of the variable.
        """
        npu.run(TWO, env={variable: "dynamic"}).check()
        assert npu.window()["status"] == "failed"
        assert f"${variable} is set" in npu.window()["error"]
        assert npu.names() == []

    def test_no_device(self, npu):
        npu.run(TWO.replace("use_device()", ""), env={"STEPPROF_ACL_DEVICES": "0"}).check()
        assert "sees no NPU" in npu.window()["error"]

    def test_without_cann_the_log_says_what_to_install(self, run_script, tmp_path):
        """The job runs without a recording, and the log says what to install."""
        ran = run_script(
            """
            import stepprof, logging
            logging.basicConfig(level="INFO")
            stepprof.init({"backend": "npu", "steps": "1", "npu": {"lease_dir": "leases"}})
            with stepprof.profile_step(1):
                pass
            print(stepprof.state().last_error)
            """,
            env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        ).check()
        assert "torch_npu cannot be imported (libhccl.so" in ran.stdout
        assert "set_env.sh" in ran.stdout


def test_sessions_are_whole(npu):
    """A window makes exactly the sequence of calls that the other tests expect."""
    npu.run(TWO).check()
    assert npu.names() == SESSION


class TestCalls:
    """Errors that torch_npu's guard hides, and errors that deeper calls print."""

    def test_swallowed(self, npu):
        ran = npu.run(
            """
            from stepprof.backends.npu.api import NpuApi
            from stepprof.errors import BackendError
            from torch_npu.profiler.analysis.prof_common_func._utils import no_exception_func
            api = NpuApi()

            @no_exception_func()
            def guarded(what):
                raise what

            def around(what):  # a guard that keeps nothing of what is inside
                return guarded(what)

            class Profile:
                @no_exception_func()
                def start(self):
                    raise RuntimeError("three")

            for call in (
                lambda: api.call(guarded, OSError(2, "one")),
                lambda: api.call(around, ValueError("two")),
                lambda: api.call(Profile().start),
            ):
                try:
                    call()
                except BackendError as error:
                    print(error)
            """
        ).check()
        assert ran.stdout.splitlines() == [
            "torch_npu's guarded failed: [Errno 2] one",
            "torch_npu's around failed: Call guarded failed. Exception: two",
            "torch_npu's start failed: three",
        ]

    def test_options_that_this_version_lacks(self, npu):
        """If torch_npu lacks a level, a metric or an activity, the error names it."""
        ran = npu.run(
            """
            from stepprof import NpuOptions
            from stepprof.backends.npu.api import NpuApi
            from stepprof.errors import BackendError
            from pathlib import Path
            api = NpuApi()
            class Fewer:
                pass
            for name, options in (
                ("ProfilerLevel", NpuOptions(level="level2")),
                ("AiCMetrics", NpuOptions(level="level1", aic_metrics="memory_ub")),
                ("ProfilerActivity", NpuOptions()),
            ):
                kept = getattr(api.profiler, name)
                setattr(api.profiler, name, Fewer)
                try:
                    api.profile(options, Path("x"))
                except BackendError as error:
                    print(error)
                setattr(api.profiler, name, kept)
            """
        ).check()
        level, metric, activity = ran.stdout.splitlines()
        assert 'has no "level2"' in level
        assert 'has no "memory_ub"' in metric
        assert "cannot record cpu, npu" in activity
