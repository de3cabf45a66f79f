"""The report of a window is found by its name, waited for, and moved into the step's folder. If there is
none, the reason is reported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from nsys.tools import build, closed, read_log

from stepprof.backends.base import ExportError
from stepprof.backends.nsys import launch as nsys_launch
from stepprof.backends.nsys import nsys_command
from stepprof.backends.nsys.process import VARIABLE, launch_of, under_nsys
from stepprof.backends.nsys.reports import Report, ReportLost, ranges
from stepprof.backends.nsys.secrets import secrets
from stepprof.cli.main import main
from stepprof.config.options.nsys import NsysOptions
from stepprof.host.atomic_files import temporary
from stepprof.run.model import Capture, Window


class Interrupted(BaseException):
    """An exception that another thread, or a signal handler, raises in this one."""


JOB = """
import json, os, sys, time
import stepprof

config, rank, world = json.loads(os.environ["CONFIG"]), int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD", 1))
stepprof.init(config, rank=rank, world_size=world, run_id="job")
for step in range(1, 5):
    for role in ("rollout", "actor"):
        with stepprof.profile_step(step, role=role):
            with stepprof.region("work"):
                pass
exec(os.environ.get("FINALLY", ""))
stepprof.shutdown(float(os.environ.get("SHUTDOWN", 20)))
print(stepprof.state())
"""


READ_MEANWHILE = """
from pathlib import Path
from stepprof.run.manifest import read_step

def seen():
    return {window["status"] for step in (2, 4) for window in read_step(Path("runs/job"), step)["windows"]}

deadline = time.monotonic() + 20
while seen() != {"lost"} and time.monotonic() < deadline:
    time.sleep(0.05)
print("meanwhile", seen())
"""


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


class Job:
    """A training job in a separate process, started under the stand-in for nsys."""

    def __init__(self, tools, folder):
        self.tools = tools
        self.folder = folder
        self.config = {
            "output_dir": str(folder / "runs"),
            "steps": "2, 4",
            "ranks": "all",
            "backend": "nsys",
            "nsys": {"report_timeout_seconds": 10},
        }
        self.run = folder / "runs" / "job"

    def start(self, *, nsys=True, roles=("rollout", "actor"), rank=0, windows=None, job=JOB, **env):
        variables = {
            **os.environ,
            "CONFIG": json.dumps(self.config),
            "NSYS_STAND_IN_LOG": str(self.folder / "nsys.jsonl"),
            "NVTX_LOG": str(self.folder / f"nvtx-{rank}.jsonl"),
            "RANK": str(rank),
            **env,
        }
        script = self.folder / "job.py"
        script.write_text(job)
        command = [sys.executable, "-W", "error", str(script)]
        if nsys:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in env.items():
                    patch.setenv(name, value)
                command = nsys_command(
                    self.config,
                    command=command,
                    roles=roles,
                    rank=rank,
                    windows=windows,
                    nsys=self.tools.nsys,
                )
        return subprocess.Popen(
            command, env=variables, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def record(self, **options):
        process = self.start(**options)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out + err
        self.output = out + err
        return self.windows()

    def windows(self):
        """Return the windows of all steps, from the manifests."""
        return [
            {**window, "step": content["step"]}
            for path in sorted(self.run.glob("step-*/manifest/*.json"))
            for content in [json.loads(path.read_text())]
            for window in content["windows"]
        ]

    def statuses(self, windows):
        return Counter((window["status"]) for window in windows)


@pytest.fixture
def job(tools, tmp_path):
    nsys_launch.profile_help.cache_clear()
    yield Job(tools, tmp_path)
    nsys_launch.profile_help.cache_clear()


class TestWholeJob:
    def test_every_window_has_its_report(self, job):
        """Each of four windows has its own report in the folder of its role, with its ranges. `stepprof
        check` passes.
        """
        windows = job.record()
        assert job.statuses(windows) == {"complete": 4}, windows
        for window in windows:
            (artifact,) = window["artifacts"]
            assert artifact["path"] == f"{window['role']}/rank-0.nsys-rep"
            content = json.loads((job.run / f"step-{window['step']:06d}" / artifact["path"]).read_text())
            expected = {("rollout", 2): 1, ("actor", 2): 2, ("rollout", 4): 3, ("actor", 4): 4}
            assert content == {"range": expected[window["role"], window["step"]], "pid": window["pid"]}
            assert artifact["kind"] == "nsys"
            assert window["export_seconds"] < 10
            assert window["stall_seconds"] < 5
        assert main(["check", str(job.run)]) == 0
        assert not list((job.folder / "runs" / "nsys").glob("*.nsys-rep"))
        found = closed(read_log(job.folder / "nvtx-0.jsonl"))
        assert found.pushed == {"work": 4}
        assert set(found.started) == {
            f"step {step} {role}" for step in (2, 4) for role in ("rollout", "actor")
        }
        (called,) = map(json.loads, (job.folder / "nsys.jsonl").read_text().splitlines())
        assert called["options"]["capture-range-end"] == "repeat:4:async"
        assert called["options"]["discard-environment"] == "true"

    def test_commands_say_what_opens_the_reports(self, job, capsys):
        """If a step has only reports of nsys, `show`, `report` and `merge` name nsys-ui, and `show` lists
        the report.
        """
        job.config["spans"] = False
        job.record()
        run = str(job.run)
        output = {}
        for command in ("show", "report", "merge"):
            assert main([command, run, "--step", "2"]) == (2 if command == "merge" else 0), command
            printed = capsys.readouterr()
            output[command] = " ".join((printed.out + printed.err).split())
        assert "actor/rank-0.nsys-rep nsys" in output["show"]
        for text in output.values():
            assert "nsys-ui" in text
        assert main(["ls", "--output-dir", str(job.run.parent)]) == 0

    def test_training_does_not_wait_for_a_report(self, job):
        """A thread waits for the report while the loop continues, whatever `export` is set to."""
        job.config["export"] = "inline"
        windows = job.record(NSYS_STAND_IN="late 0.8")
        assert job.statuses(windows) == {"complete": 4}, windows
        assert all(window["export_seconds"] > 0.8 for window in windows)
        assert sum(window["stall_seconds"] for window in windows) < 0.8

    def test_a_process_without_libcudart(self, job):
        """Without libcudart each window is failed with the reason, and the job continues."""
        job.config["strict"] = False
        hide = "from stepprof.backends.nsys import cuda as nsys_cuda\nnsys_cuda.libraries = lambda environ: iter(())\n"
        windows = job.record(job=hide + JOB)
        assert job.statuses(windows) == {"failed": 4}, windows
        assert "no libcudart was found" in windows[0]["error"]

    def test_each_rank_waits_for_its_own_reports(self, job):
        """Each rank gets the reports of its own process, in any order of arrival."""
        first = job.start(rank=0, NSYS_STAND_IN="late 0.4", WORLD="2")
        second = job.start(rank=1, WORLD="2")
        for process in (first, second):
            assert process.wait(60) == 0, process.communicate()
            process.communicate()
        windows = job.windows()
        assert job.statuses(windows) == {"complete": 8}, windows
        for window in windows:
            path = job.run / f"step-{window['step']:06d}" / window["artifacts"][0]["path"]
            assert path.name == f"rank-{window['rank']}.nsys-rep"
            assert json.loads(path.read_text())["pid"] == window["pid"]

    def test_an_nsys_that_writes_at_the_end_of_its_ranges(self, job):
        """An old nsys writes the reports only after its last range. Each window is complete, and secret
        variables are logged by name only.
        """
        windows = job.record(NSYS_STAND_IN_IS_OLD="1", HF_TOKEN="hf_secret")
        assert job.statuses(windows) == {"complete": 4}, windows
        (called,) = map(json.loads, (job.folder / "nsys.jsonl").read_text().splitlines())
        assert called["options"]["capture-range-end"] == "repeat:4"
        assert "discard-environment" not in called["options"]
        assert "HF_TOKEN" in job.output
        assert "hf_secret" not in job.output

    def test_an_nsys_that_pauses(self, job):
        """A report that stops growing is not complete while nsys still has it open."""
        windows = job.record(NSYS_STAND_IN="pausing")
        assert job.statuses(windows) == {"complete": 4}, windows
        assert min(window["artifacts"][0]["bytes"] for window in windows) > 100
        assert main(["check", str(job.run)]) == 0

    @pytest.mark.parametrize(
        ("ending", "code", "statuses"),
        [
            ("raise KeyError('mine')", 1, {"complete"}),
            ("sys.exit(3)", 3, {"complete"}),
            ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM, {"partial"}),
            ("time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, {"lost"}),
        ],
        ids=["exception", "exit", "SIGTERM", "SIGKILL"],
    )
    def test_an_end_in_the_middle_of_a_window(self, job, ending, code, statuses):
        """If the process ends inside a window, its ranges are closed and its report is kept. After SIGKILL
        the window is lost. Earlier windows are complete.
        """
        before = "[time.sleep(0.05) for _ in range(600) if stepprof.state().pending_exports]"
        inside = f"if step == 4 and role == 'actor': {before}; {ending}"
        default = "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)  # coverage has a handler of its own\n"
        process = job.start(job=default + JOB.replace("                pass", f"                {inside}"))
        out, err = process.communicate(timeout=200)
        assert process.returncode == code % 256, out + err  # nsys returns the code of the job
        found = {(window["step"], window["role"]): window for window in job.windows()}
        last = found.pop((4, "actor"))
        assert Counter(window["status"] for window in found.values()) == {"complete": 3}, found
        assert last["status"] in statuses, last
        assert bool(last["artifacts"]) == (last["status"] != "lost")
        if code != -signal.SIGKILL:
            closed(read_log(job.folder / "nvtx-0.jsonl"))

    def test_a_window_that_is_never_closed(self, job):
        """The next window of the role closes a window that was left open. Each has its range, and the
        first one has its report.
        """
        left_open = JOB.replace(
            "        with stepprof.profile_step(step, role=role):\n",
            "        stepprof.profile_step(step, role=role).start()\n        if True:\n",
        )
        assert left_open != JOB
        windows = job.record(job=left_open)
        found = {window["step"]: window for window in windows if window["role"] == "rollout"}
        assert found[2]["artifacts"], windows
        assert {window["status"] for window in windows} <= {"partial", "complete", "joined"}, windows
        closed(read_log(job.folder / "nvtx-0.jsonl"))

    def test_nsys_started_for_too_many_windows(self, job):
        """nsys then writes its reports only after the process has ended. The windows are lost with that
        reason, without a wait.
        """
        began = time.monotonic()
        windows = job.record(NSYS_STAND_IN_IS_OLD="1", windows=9)
        assert time.monotonic() - began < 10
        assert job.statuses(windows) == {"lost": 4}
        assert (
            "nsys was started to write its reports after 9 windows, and there were 4" in windows[0]["error"]
        )
        assert len(list((job.folder / "runs" / "nsys").glob("*.nsys-rep"))) == 4

    def test_nsys_started_for_too_few_windows(self, job):
        """A window beyond the number that nsys was started for is lost, and its error states both numbers."""
        windows = job.record(windows=3)
        assert job.statuses(windows) == {"complete": 3, "lost": 1}
        (lost,) = (window for window in windows if window["status"] == "lost")
        assert "this is window 4 of the process, and nsys was started for 3" in lost["error"]
        assert (lost["step"], lost["role"]) == (4, "actor")

    def test_a_report_that_never_appears(self, job):
        """The end of the run bounds the wait for a report. The windows are lost, and the reason names the
        folder.
        """
        windows = job.record(NSYS_STAND_IN="never", SHUTDOWN="1")
        assert job.statuses(windows) == {"lost": 4}
        assert f"nsys wrote no report to {job.folder}/runs/nsys" in windows[0]["error"]
        assert main(["check", str(job.run)]) == 1

    def test_without_nsys_the_loss_is_reported_at_once(self, job):
        """Without nsys the process does not wait for a report. One log line explains the correction, and
        the manifest says `lost` while the job still runs.
        """
        windows = job.record(nsys=False, FINALLY=READ_MEANWHILE)
        assert "meanwhile {'lost'}" in job.output
        assert job.statuses(windows) == {"lost": 4}
        assert "was not started under nsys" in windows[0]["error"]
        assert job.output.count("this process does not run under nsys") == 1

    @pytest.mark.parametrize(
        ("call", "status", "reason"),
        [
            ("cudaProfilerStart", "failed", "cudaProfilerStart answered 35 (insufficient driver)"),
            ("cudaProfilerStop", "lost", "the range never ended: cudaProfilerStop answered 35"),
        ],
    )
    def test_a_driver_that_refuses(self, job, call, status, reason):
        """If a call of libcudart fails, the window states it, the job continues, and every NVTX range is
        closed.
        """
        windows = job.record(CUDART_FAILS=call)
        assert job.statuses(windows) == {status: 4}, windows
        assert reason in windows[0]["error"]
        closed(read_log(job.folder / "nvtx-0.jsonl"))

    def test_reports_of_a_shell_around_the_job_are_found(self, job):
        """nsys names its reports after the process that it started, which may be a shell. The reports are
        found all the same.
        """
        script = job.folder / "job.py"
        script.write_text(JOB)
        command = nsys_command(
            job.config,
            command=["sh", "-c", f"{sys.executable} {script}; true"],
            roles=("rollout", "actor"),
            nsys=job.tools.nsys,
        )
        env = {**os.environ, "CONFIG": json.dumps(job.config)}
        done = subprocess.run(
            command, env=env, cwd=job.folder, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        assert job.statuses(job.windows()) == {"complete": 4}, job.windows()


@pytest.fixture
def place(tmp_path):
    """Return a folder that contains the step's folder and that of nsys."""
    (tmp_path / "step" / "actor").mkdir(parents=True)
    (tmp_path / "nsys").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def no_ranges():
    """Forget the ranges of this process."""
    ranges.reset()
    yield
    ranges.reset()


def variable(folder, **more):
    settled = {"output": f"{folder}/r_{{pid}}", "ranges": "any", "mode": "async", **more}
    return {VARIABLE: ";".join(f"{key}={value}" for key, value in settled.items())}


def report(place, number=1, *, environ=None, impossible=None, seconds=5.0, folder=None):
    options = NsysOptions(report_timeout_seconds=seconds)
    launch = launch_of(options, environ or variable(folder or place / "nsys"))
    capture = Capture(Window(2, "actor"), place / "step", "actor/rank-0", {})
    for _ in range(number):
        ranges.begin((2, "actor/rank-0"), own=True)
        ranges.end()
    return Report(capture, launch, number, options, impossible=impossible)


def written(place, name="r_{pid}.1.nsys-rep", content=b"report", after=0.0):
    path = place / "nsys" / name.format(pid=os.getpid())

    def write():
        time.sleep(after)
        path.write_bytes(content)

    if after:
        thread = threading.Thread(target=write)
        thread.start()
        return path
    write()
    return path


class TestReport:
    @pytest.mark.parametrize("after", [0.0, 0.7])
    def test_a_report_is_moved_when_it_arrives(self, place, after):
        """A report is moved into the step's folder when it arrives, soon or late."""
        path = written(place, after=after)
        (artifact,) = report(place)()
        assert (artifact.path, artifact.kind, artifact.bytes) == ("actor/rank-0.nsys-rep", "nsys", 6)
        assert not path.exists()
        assert [path.name for path in (place / "step" / "actor").iterdir()] == ["rank-0.nsys-rep"]

    def test_the_only_report_of_a_session(self, place):
        """The only report of an nsys session has no number in its name; it is found."""
        written(place, "r_{pid}.nsys-rep")
        assert report(place)()

    def test_a_growing_report_is_waited_for(self, place):
        """A report that still grows is moved only when its size no longer changes."""
        path = written(place, content=b"")
        with path.open("wb", buffering=0) as file:
            making = report(place)
            thread = threading.Thread(target=lambda: found.append(making()))
            found: list = []
            thread.start()
            for _ in range(8):
                file.write(b"x")
                time.sleep(0.1)
        thread.join(10)
        assert found[0][0].bytes == 8

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("r_{pid}.2.nsys-rep", b"x", "nsys wrote no report to"),
            ("r_1{pid}.1.nsys-rep", b"x", "nsys wrote no report to"),
            ("r_{pid}.1.nsys-rep", b"", "was empty, older than the window or still growing"),
            ("r_{pid}.1.qdstrm", b"x", "is not a report yet"),
            ("r_{pid}.1.sqlite", b"x", "nsys wrote no report to"),
        ],
    )
    def test_reports_of_others_are_not_taken(self, place, name, content, reason):
        """A report of another range or process, an empty report and an unfinished one stay in their place,
        and the window is lost.
        """
        path = written(place, name, content)
        with pytest.raises(ReportLost, match=reason) as raised:
            report(place, seconds=0.5)()
        assert raised.value.outcome == "lost"
        assert path.read_bytes() == content

    @pytest.mark.parametrize("trap", ["pipe", "link"])
    def test_pipes_and_links_are_not_taken(self, place, trap):
        """Neither a pipe nor the target of a link is moved, because another user may have placed it there."""
        path, private = place / "nsys" / f"r_{os.getpid()}.1.nsys-rep", place / "private"
        private.write_text("mine")
        os.mkfifo(path) if trap == "pipe" else path.symlink_to(private)
        with pytest.raises(ReportLost, match="was empty"):
            report(place, seconds=0.5)()
        assert list((place / "step" / "actor").iterdir()) == []

    def test_a_report_of_an_earlier_process_is_not_taken(self, place):
        """A report that is older than the window is not used, because an earlier process had the same
        process id.
        """
        path = written(place)
        os.utime(path, (time.time() - 60,) * 2)
        with pytest.raises(ReportLost, match="older than the window"):
            report(place, seconds=0.5)()

    def test_the_end_of_the_process(self, place):
        """The end of the process shortens the wait for a report."""
        making = report(place, seconds=60)
        threading.Timer(0.2, lambda: making.hurry(time.monotonic() + 0.2)).start()
        began = time.monotonic()
        with pytest.raises(ReportLost, match="when the process ended"):
            making()
        assert time.monotonic() - began < 3

    def test_the_end_of_the_process_does_not_extend_the_timeout(self, place):
        """A report whose timeout has passed is lost, even if the end of the process takes longer."""
        making = report(place, seconds=0.3)
        making.hurry(time.monotonic() + 60)
        began = time.monotonic()
        with pytest.raises(ReportLost, match=r"after 0\.3 s"):
            making()
        assert time.monotonic() - began < 10

    def test_taken_by_another_process(self, place):
        """If another process of the session has moved the report first, the window is lost."""
        path = written(place)
        making = report(place)
        path.unlink()
        with pytest.raises(ReportLost, match="has taken"):
            making._move(path)

    def test_the_destination_cannot_be_written(self, place):
        """The report stays in its place, and the reason names it."""
        path = written(place)
        (place / "step" / "actor").rmdir()
        with pytest.raises(ExportError, match=f"the report stays at {path}") as raised:
            report(place)()
        assert raised.value.outcome == "failed"
        (place / "step" / "actor").write_text("no folder")
        with pytest.raises(ExportError, match="Not a directory"):
            report(place)()
        assert path.read_bytes() == b"report"

    @pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no second file system to write to")
    def test_a_report_is_copied_to_another_file_system(self, place, request):
        """A report on another file system is copied and then removed. If the copy fails, it keeps its name
        and place.
        """
        other = Path("/dev/shm", f"stepprof-test-{os.getpid()}")
        other.mkdir()
        request.addfinalizer(lambda: [*map(Path.unlink, other.iterdir()), other.rmdir()])
        path = other / f"r_{os.getpid()}.1.nsys-rep"
        path.write_bytes(b"report")
        (place / "step" / "actor").rmdir()
        with pytest.raises(ExportError, match="the report stays at"):
            report(place, folder=other)()
        assert [found.name for found in other.iterdir()] == [path.name]
        (place / "step" / "actor").mkdir()
        (artifact,) = report(place, folder=other)()
        assert (place / "step" / artifact.path).read_bytes() == b"report"
        assert list(other.iterdir()) == []

    def test_an_interrupted_move(self, place):
        """If the thread is interrupted while it moves the report, at whatever line, the report is in its place or in
        the step, and the exception is raised.
        """
        making, files = report(place), ("reports.py", "shutil.py", "atomic_files.py")
        temporary(place)  # what it remembers is read before
        for number in range(1000):
            path = written(place)
            lines = 0

            def look(frame, event, argument, number=number):
                nonlocal lines
                if event == "line" and Path(frame.f_code.co_filename).name in files:
                    lines += 1
                    if lines == number + 1:
                        raise Interrupted
                return look

            before = sys.gettrace()
            sys.settrace(look)
            try:
                making._move(path)
                break
            except Interrupted:
                pass
            finally:
                sys.settrace(before)
            moved = list((place / "step" / "actor").glob("*.nsys-rep"))
            assert path.exists() or moved, number
            assert [each.read_bytes() for each in moved] in ([], [b"report"])
            assert set(path.parent.iterdir()) <= {path}, number
            for each in moved:
                each.unlink()
        assert lines < number + 1
        assert number > 10
        assert [each.name for each in (place / "step" / "actor").iterdir()] == ["rank-0.nsys-rep"]

    def test_captures_of_one_name_overwrite_no_file(self, place):
        """The second report of the same name gets a number, so that no file is overwritten."""
        written(place)
        report(place)()
        written(place)
        (artifact,) = report(place)()
        assert artifact.path == "actor/rank-0.2.nsys-rep"


class TestLaunch:
    def test_nsys_is_detected_by_its_environment(self):
        """A process under nsys is detected by the variables that nsys, or the command of stepprof, sets."""
        assert not under_nsys({"LD_PRELOAD": "/usr/lib/libjemalloc.so"})
        assert under_nsys({"NSYS_PROFILING_SESSION_ID": "12"})
        assert under_nsys({"CUDA_INJECTION64_PATH": "/opt/nvidia/nsight-systems/libToolsInjection64.so"})
        assert under_nsys({VARIABLE: "output=/a"})

    def test_a_command_of_the_users_own(self, tmp_path):
        """If users start nsys themselves, `report_dir` names the folder. A report is found only if its
        name contains the process id.
        """
        launch = launch_of(NsysOptions(report_dir=str(tmp_path)), {})
        pid = os.getpid()
        for name in (f"worker_process_{pid}.1.nsys-rep", f"{pid}.1.nsys-rep", f"'worker_{pid}_x'.1.nsys-rep"):
            (tmp_path / name).touch()
            found = launch.find(1)
            assert found is not None, name
            assert found.name == name
            found.unlink()
        for name in (
            f"worker_process_1{pid}.1.nsys-rep",
            f"worker_process_{pid}.2.nsys-rep",
            f"worker_process_{os.getppid()}.1.nsys-rep",
            "report1.nsys-rep",
        ):
            (tmp_path / name).touch()
        assert launch.find(1) is None

    def test_secrets_are_named_without_values(self):
        """Only the names of secret variables that have a value are listed."""
        environ = {
            "HF_TOKEN": "x",
            "WANDB_API_KEY": "y",
            "AWS_SECRET_ACCESS_KEY": "",
            "TOKENIZERS_PARALLELISM": "1",
            "MAX_NUM_BATCHED_TOKENS": "8192",
            "OPENAI_KEY": "z",
            "AWS_ACCESS_KEY_ID": "a",
            "GITHUB_PAT": f"github_pat_{'b' * 20}",
            "KEYBOARD": "us",
            "SSH_AUTH_SOCK": "/tmp/agent.7",
            "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
            "PWD": "/home/me",
            "PATH": "/bin",
        }
        assert secrets(environ) == [
            "AWS_ACCESS_KEY_ID",
            "GITHUB_PAT",
            "HF_TOKEN",
            "OPENAI_KEY",
            "WANDB_API_KEY",
        ]
