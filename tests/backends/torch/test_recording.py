"""Recording with the real torch.profiler under failures of the disk, another profiler and low memory, and
the export next to the loop.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess

import pytest
from warm import HELD_LOCK

from stepprof.cli.main import main

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def leave_at_once(warm):
    """End the scripts at once, because these tests do not examine how a process ends."""
    warm.leave = True


LOOP = """
def loop(*inside, after=lambda: None):
    '''Steps 1 to 3, of which 2 and 3 are selected; step 2 does what the test is about.'''
    for step in (1, 2, 3):
        with profile_step(step, role="actor"):
            work()
            if step == 2:
                for act in inside:
                    act()
                work()
        wait_for_exports()
        after()
        print(step, stepprof.state().status != "recording", flush=True)
"""
TWO = {"STEPPROF_STEPS": "2-3"}


def on_disk(folder):
    """Return the variables of a job that records into a folder."""
    return {**TWO, "STEPPROF_OUTPUT_DIR": str(folder), "STEPPROF_RUN_ID": "r"}


def copy_runs(warm, folder):
    """Copy the runs into the folder where `warm` reads them."""
    shutil.copytree(folder / "r", warm.folder / "runs" / "r")


class TestDisk:
    def test_a_full_disk_costs_only_the_trace(self, warm, small_disk):
        """If the disk is full, the job continues, the log has the reason, and the window has no trace.
        When there is room, the next step records.
        """
        ran = warm.run_twice(
            LOOP
            + """
def fill():
    with open("disk/filler", "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
stepprof.init()
loop(fill, after=lambda: os.path.exists("disk/filler") and os.unlink("disk/filler"))
""",
            env=on_disk(small_disk),
            together=False,
        ).check()
        assert "No space left on device" in ran.stderr or "no space left" in ran.stderr
        copy_runs(warm, small_disk)
        assert warm.window(2)["status"] in ("failed", "lost")
        assert warm.window(3)["status"] == "complete"
        assert warm.is_readable(warm.window(3), 3)

    def test_full_before_the_window(self, warm, small_disk):
        """If the disk is full before the window, nothing is recorded. The state has the reason and is idle
        or armed, and the next step records.
        """
        ran = warm.run(
            LOOP
            + """
session = stepprof.init()
with open("disk/filler", "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 4096):
            pass
    except OSError:
        pass
with profile_step(2, role="actor"):
    work()
print(stepprof.state().status, stepprof.state().last_error, stepprof.state().recorded_steps)
os.unlink("disk/filler")
with profile_step(3, role="actor"):
    work()
""",
            env=on_disk(small_disk),
        ).check()
        assert "No space left on device" in ran.stdout
        assert ran.stdout.startswith(("idle", "armed"))
        copy_runs(warm, small_disk)
        assert warm.window(3)["status"] == "complete"

    def test_a_read_only_disk_costs_the_trace_or_fails_init(self, warm, small_disk):
        """If a disk becomes read-only, the trace is lost. On a read-only disk `init` raises an error that
        names the key.
        """
        ran = warm.run_twice(
            LOOP
            + """
import subprocess
def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", "disk"], check=True)
stepprof.init({"steps": "2-3", "output_dir": "disk", "spans": False}, run_id="r")
loop(lambda: remount("ro"), after=lambda: remount("rw"))
""",
            together=False,
        ).check()
        assert "Read-only file system" in ran.stderr
        copy_runs(warm, small_disk)
        assert warm.window(2)["status"] in ("failed", "lost")
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        ran = warm.run(
            """
            try:
                stepprof.init({"steps": 2, "output_dir": "disk/new"})
            except stepprof.errors.ConfigError as error:
                print(error)
            """
        ).check()
        assert ran.stdout.startswith('output_dir = "disk/new": cannot be made or written: ')
        assert "Read-only file system" in ran.stdout

    @pytest.mark.parametrize("moment", ["recording", "exporting"])
    def test_a_run_that_vanishes(self, warm, moment):
        """Another process removes the run's folder. The job continues, and the next step records."""
        ran = warm.run_twice(
            LOOP
            + """
import shutil
def vanish():
    shutil.rmtree(session.path, ignore_errors=True) if session.path else None
session = stepprof.init(run_id="r")
if sys.argv[1] == "recording":
    loop(vanish)
else:
    When("from=flushing", lambda: threading.Timer(0.05, vanish).start())
    loop(lambda: work(10_000))
""",
            moment,
            env=TWO,
        ).check()
        if moment == "recording":
            assert "event=export.failed" in ran.stderr or warm.window(2)["status"] == "complete"
        assert warm.window(3)["status"] == "complete"
        assert warm.is_readable(warm.window(3), 3)

    def test_a_path_under_a_file_fails_init(self, warm):
        """If `output_dir` is below a file, `init` raises ConfigError, and the state is idle."""
        ran = warm.run(
            """
            open("file", "w").close()
            try:
                stepprof.init({"steps": 2, "output_dir": "file/runs"})
            except stepprof.errors.ConfigError as error:
                print(error)
            print(stepprof.state())
            """
        ).check()
        assert 'output_dir = "file/runs": cannot be made or written' in ran.stdout
        assert ran.stdout.endswith("\nidle\n")


THEIRS = """
from torch.profiler import profile, schedule, ProfilerActivity
def theirs(**more):
    return profile(activities=[ProfilerActivity.CPU], **more)
def has(profiler):
    print("theirs has", any(event.name == "aten::mm" for event in profiler.events()))
def window(step, *inside):
    with profile_step(step, role="actor"):
        work()
        for act in inside:
            act()
    wait_for_exports()
def elsewhere(act):
    thread = threading.Thread(target=act); thread.start(); thread.join()
stepprof.init()
"""

FOREIGN = {
    "before, on this thread": """
with theirs() as profiler:
    work()
    window(2)
has(profiler)
""",
    "before, on another thread": """
profiler, go = theirs(), [threading.Event(), threading.Event()]
def record():
    with profiler:
        work()
        go[0].set(); go[1].wait()
        work()
thread = threading.Thread(target=record); thread.start()
go[0].wait()
window(2)
go[1].set(); thread.join()
has(profiler)
""",
    "inside, and ended there": """
def inside():
    with theirs() as profiler:
        work()
    has(profiler)
window(2, inside)
""",
    "inside, on another thread": """
def inside():
    with theirs() as profiler:
        work()
    has(profiler)
window(2, lambda: elsewhere(inside))
""",
    "inside, and still open at our end": """
profiler = theirs()
window(2, profiler.start, work)
work()
profiler.stop()
has(profiler)
""",
    "prepared by a schedule": """
with theirs(schedule=schedule(wait=0, warmup=1, active=1, repeat=1)) as profiler:
    window(2)
    profiler.step()
    work()
    profiler.step()
has(profiler)
""",
    "torch.autograd.profiler": """
with torch.autograd.profiler.profile() as profiler:
    window(2)
has(profiler.function_events and type("P", (), {"events": lambda self: profiler.function_events})())
""",
}


class TestForeignProfiler:
    @pytest.mark.parametrize("case", FOREIGN)
    def test_another_profiler_is_left_alone(self, warm, case):
        """The other profiler keeps its events. Our window is failed or skipped and names the other
        profiler, and the next selected step records.
        """
        ran = warm.run_twice(
            THEIRS
            + FOREIGN[case]
            + "\nprint(type(profiler).__name__) if 'profiler' in globals() else None\nwindow(3)\n",
            env=TWO,
        ).check()
        assert "theirs has True" in ran.stdout
        window = warm.window(2)
        assert window["status"] == ("failed" if case.startswith("inside") else "skipped")
        assert "another torch profiler" in window["error"]
        assert warm.window(3)["status"] == "complete"
        assert warm.is_readable(warm.window(3), 3)


class TestMemory:
    def test_a_host_that_runs_low(self, warm):
        """If the host's memory runs low, the capture ends early and is kept, and the body continues."""
        warm.run(
            """
            stepprof.init({"steps": "2", "output_dir": "runs", "min_free_memory": "99%"})
            with profile_step(2, role="actor"):
                work()
                while stepprof.state().status == "recording":
                    time.sleep(0.01)
                work()
            """
        ).check()
        window = warm.window()
        assert (window["status"], window["capped_by"]) == ("complete", "memory")
        assert warm.is_readable(window)

    def test_an_address_space_that_runs_out(self, warm):
        """Under a limit of the address space, the capture ends early before its events would exceed the
        limit.
        """
        warm.run(
            """
            import resource
            stepprof.init({"steps": "2", "output_dir": "runs"})
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            before = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + 60 * 2**20, before[1]))
            with profile_step(2, role="actor"):
                for _ in range(10):
                    work(2000)
                    time.sleep(0.05)
            resource.setrlimit(resource.RLIMIT_AS, before)
            """
        ).check()
        assert warm.window()["capped_by"] == "memory"


IN_CHILD = {
    "at its begin": "os.register_at_fork(after_in_child=lock.acquire)",
    "amid its files": """
job = os.getpid()
def audit(event, args):
    if event == "open" and str(args[0]).endswith(".gz") and os.getpid() != job:
        lock.acquire()
sys.addaudithook(audit)
""",
    "after its files": """
from stepprof.recording.capture import LocalCapture
write = LocalCapture.exported_in_child
def locked(self, result):
    write(self, result)
    lock.acquire()
LocalCapture.exported_in_child = locked
""",
}


class TestExports:
    @pytest.mark.parametrize("mode", ["fork", "thread", "inline"])
    def test_exports_run_in_a_child_or_in_place(self, warm, mode):
        """An export in a child or a thread runs next to the loop; an export in place counts as stall."""
        ran = warm.run(
            """
            stepprof.init({"steps": "2", "output_dir": "runs", "export": sys.argv[1]})
            with profile_step(2, role="actor"):
                work(20_000)
            count = 0
            while stepprof.state().pending_exports:
                count += 1
                work(1)
            print(count)
            """,
            mode,
        ).check()
        window = warm.window()
        assert window["status"] == "complete"
        assert warm.is_readable(window)
        if mode == "inline":
            assert ran.stdout == "0\n"
            assert window["stall_seconds"] > window["export_seconds"] > 0
        else:
            assert int(ran.stdout) > 0

    @pytest.mark.parametrize("place", IN_CHILD)
    def test_a_child_that_hangs(self, warm, place):
        """A child that waits for a lock is killed. The trace is complete, no other file is left, and the
        next step records.
        """
        ran = warm.run(
            HELD_LOCK
            + IN_CHILD[place]
            + """
from stepprof.recording.export import executor
executor.HANG_SECONDS = 0.2
stepprof.init({"steps": "2-3", "output_dir": "runs", "export": "fork"})
for step in (2, 3):
    with profile_step(step, role="actor"):
        work()
"""
        ).check()
        for step in (2, 3):
            window = warm.window(step=step)
            assert (window["status"], window["error"]) == ("complete", None)
            assert warm.is_readable(window, step)
            [folder] = warm.folder.glob(f"runs/*/step-{step:06d}/actor")
            assert [file.name for file in folder.iterdir()] == ["rank-0.trace.json.gz"]
            if place == "after its files":
                assert "export_note" not in window
            else:
                assert window["export_note"].startswith("exported in a thread: the export process hung")
        assert ran.stderr.count("the export process hung") == (0 if place == "after its files" else 2)

    def test_steps_in_a_row_and_siblings_back_to_back(self, warm):
        """The export of an earlier window causes no later window to be skipped."""
        warm.run(
            """
            stepprof.init()
            for step in range(1, 6):
                for role in ("rollout", "actor"):
                    with profile_step(step, role=role):
                        work(2_000)
            """,
            env={"STEPPROF_STEPS": "2-4"},
        ).check()
        for step in (2, 3, 4):
            windows = warm.windows(step)
            assert [(window["role"], window["status"]) for window in windows] == [
                ("actor", "complete"),
                ("rollout", "complete"),
            ]
            assert all(warm.is_readable(window, step) for window in windows)

    def test_threads_that_race_to_open(self, warm):
        """Four threads open windows at the same time. Each window ends with an outcome, and every complete
        one has a readable trace.
        """
        warm.run(
            """
            stepprof.init()
            together = threading.Barrier(4)
            def race(number):
                for step in range(2, 8):
                    together.wait()
                    with profile_step(step, role=f"role{number}"):
                        work(10)
            threads = [threading.Thread(target=race, args=(number,)) for number in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            """,
            env={"STEPPROF_STEPS": "2-7"},
        ).check()
        for step in range(2, 8):
            windows = warm.windows(step)
            assert len(windows) == 4
            ended = {window["status"] for window in windows}
            assert ended <= {"complete", "joined", "partial", "skipped"}
            captured = [window for window in windows if window["status"] == "complete"]
            assert captured or step > 2
            assert all(warm.is_readable(window, step) for window in captured)


class TestWhatIsRecorded:
    def test_the_artifact_names_step_role_and_rank(self, warm):
        """The path and the content of the trace contain step, role and rank."""
        warm.run(
            """
            stepprof.init(rank=3, world_size=4)
            with profile_step(2, role="actor", version=7):
                with region("update_actor", batch=64):
                    work()
            """,
            env={"STEPPROF_RANKS": "all"},
        ).check()
        window = warm.window()
        (artifact,) = window["artifacts"]
        assert artifact["path"] == "actor/rank-3.trace.json.gz"
        trace = json.loads(gzip.decompress((warm.run_path / "step-000002" / artifact["path"]).read_bytes()))
        stated = trace["stepprof"]
        expected = {
            "step": 2,
            "role": "actor",
            "rank": 3,
            "world_size": 4,
            "version": 7,
            "run_id": warm.run_path.name,
        }
        assert {key: stated[key] for key in expected} == expected
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"aten::mm", "update_actor"} <= names

    def test_check_finds_missing_and_damaged_artifacts(self, warm, capsys):
        """`stepprof check` passes for the recording. It fails if the artifact is cut off or missing, and
        for an empty folder.
        """
        warm.run(
            """
            stepprof.init()
            with profile_step(2, role="actor"):
                work()
            """
        ).check()
        arguments = ["check", str(warm.run_path)]
        assert main(arguments) == 0
        file = warm.run_path / "step-000002" / warm.window()["artifacts"][0]["path"]
        data = file.read_bytes()
        file.write_bytes(data[:-20])
        assert main(arguments) == 1
        file.unlink()
        assert main(arguments) == 1
        (warm.folder / "empty").mkdir()
        assert main(["check", str(warm.folder / "empty")]) != 0
        capsys.readouterr()
