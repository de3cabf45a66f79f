"""The nsys report of an engine is moved into the step's folder, whether the engine is an object of this
process or a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from nsys.tools import HERE, build
from other_user import needs_root, server_of_other_user

from stepprof.backends.nsys import launch, nsys_command
from stepprof.backends.nsys.reports import RangeCount
from stepprof.cli.main import main
from stepprof.remote.nsys_server import KeptCount, environment_of, listener

ENGINE = "rollout/replica-0/engine.nsys-rep"

JOB = """
import json, os, sys
import stepprof

stepprof.init(json.loads(os.environ["CONFIG"]), rank=0, world_size=1, run_id=os.environ.get("RUN", "job"))
exec(os.environ.get("BEFORE", ""))
stepprof.attach(engine if "engine" in globals() else os.environ["URL"], role="rollout", **attached)
for step in range(1, 5):
    exec(os.environ.get("STEP", "with stepprof.profile_step(step, role='rollout'):\\n    pass"))
print(json.dumps(stepprof.state().pending_exports))
stepprof.shutdown(float(os.environ.get("SHUTDOWN", 90)))
assert not stepprof.state().pending_exports
"""
SERVER = "attached = {'kind': 'vllm'}"
OBJECT = f"sys.path.insert(0, {str(HERE.parent)!r})\nfrom nsys.engines import engine as make\nengine, attached = make(), {{}}"


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def asked_anew():
    """Read the help of nsys again; it is read once in a process."""
    launch.profile_help.cache_clear()
    yield
    launch.profile_help.cache_clear()


class Jobs:
    """Jobs that record an engine, and the engine's server."""

    def __init__(self, tools, folder):
        self.tools = tools
        self.folder = folder
        self.config = {
            "output_dir": str(folder / "runs"),
            "steps": "2, 4",
            "backend": "null",
            "engine_start_timeout_seconds": 60,
            "roles": {"rollout": {"engine": {"backend": "nsys"}}},
            "nsys": {"report_timeout_seconds": 60},
        }
        self.reports = folder / "runs" / "nsys"

    def command(self, command, *, old=False, **options):
        with pytest.MonkeyPatch.context() as patch:
            if old:
                patch.setenv("NSYS_STAND_IN_IS_OLD", "1")
            options = {"roles": ["rollout"], "engine": True, **options}
            return nsys_command(self.config, command=command, nsys=self.tools.nsys, **options)

    @contextmanager
    def server(self, *, nsys=True, shell=False, manner="now", old=False, secret="", **options):
        """Start a server, under nsys by default, and yield its URL."""
        command = [sys.executable, str(HERE / "engines.py")]
        if shell:
            command = ["sh", "-c", f"{' '.join(command)}; true"]
        if nsys:
            command = self.command(command, old=old, **options)
        env = {**os.environ, "NSYS_STAND_IN": manner, "HF_TOKEN": secret}
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            os.killpg(process.pid, 15)
            process.communicate(timeout=200)

    def record(self, *, nsys=None, **env):
        """Run a job; return the exports that were pending after its windows."""
        script = self.folder / "job.py"
        script.write_text(JOB)
        command = [sys.executable, "-W", "error", str(script)]
        variables = {"BEFORE": SERVER, "CONFIG": json.dumps(self.config), **env}
        done = subprocess.run(
            command if nsys is None else self.command(command, **nsys),
            cwd=self.folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.output = done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[0])

    def entries(self, key="engines", run="job"):
        """Return the entries in the manifests, by step."""
        return {
            content["step"]: entry
            for path in sorted((self.folder / "runs" / run).glob("step-*/manifest/*.json"))
            for content in [json.loads(path.read_text())]
            for entry in content[key]
        }

    def statuses(self, **which):
        return {step: entry["status"] for step, entry in self.entries(**which).items()}

    def report(self, step, path=ENGINE, run="job"):
        return json.loads((self.folder / "runs" / run / f"step-{step:06d}" / path).read_text())


@pytest.fixture
def jobs(tools, tmp_path):
    return Jobs(tools, tmp_path)


class TestServer:
    @pytest.mark.parametrize("shell", [False, True])
    def test_reports_are_moved_to_the_step(self, jobs, shell, capsys):
        """Each report is moved to its role and replica and listed in the manifest. `stepprof check` and
        `stepprof show` find it. nsys started the server directly or through a shell.
        """
        with jobs.server(shell=shell) as url:
            jobs.record(URL=url)
        entries = jobs.entries()
        assert {step: entry["status"] for step, entry in entries.items()} == {2: "complete", 4: "complete"}, (
            entries
        )
        for number, (step, entry) in enumerate(sorted(entries.items()), 1):
            (artifact,) = entry["artifacts"]
            assert (artifact["path"], artifact["kind"]) == (ENGINE, "nsys")
            assert (entry["role"], entry["replica"], entry["kind"], entry["error"]) == (
                "rollout",
                0,
                "vllm",
                None,
            )
            assert jobs.report(step)["range"] == number
        assert not list(jobs.reports.glob("*.nsys-rep"))
        run = str(jobs.folder / "runs" / "job")
        assert main(["check", run]) == 0
        capsys.readouterr()
        assert main(["show", run, "--step", "2"]) == 0
        assert ENGINE in capsys.readouterr().out

    def test_training_does_not_wait_for_a_report(self, jobs):
        """A window ends when the engine has stopped. Its report is shown as pending, and the end of the
        run waits for it.
        """
        with jobs.server(manner="late 5") as url:
            pending = jobs.record(URL=url)
        assert pending
        assert set(pending) <= {"rollout/0 of step 2", "rollout/0 of step 4"}
        assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()
        assert all(entry["stop_seconds"] < 5 for entry in jobs.entries().values())

    def test_a_job_after_another_job(self, jobs):
        """A server may outlive a job; in the next job nsys continues to count its ranges."""
        with jobs.server(windows="any") as url:
            jobs.record(URL=url)
            jobs.record(URL=url, RUN="again")
        assert [jobs.report(step, run="again")["range"] for step in (2, 4)] == [3, 4]
        assert jobs.statuses(run="again") == {2: "complete", 4: "complete"}

    def test_an_nsys_that_writes_after_its_last_range(self, jobs):
        """An old nsys writes the reports only after its last range. Both windows become complete."""
        with jobs.server(old=True) as url:
            jobs.record(URL=url)
        assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()

    def test_an_environment_that_would_be_in_the_reports(self, jobs):
        """If nsys cannot leave the environment out of its reports, one line names the secret variables,
        never their values.
        """
        with jobs.server(old=True, secret="hf_secret") as url:
            jobs.record(URL=url)
        assert jobs.output.count("nsys reports contain the environment") == 1
        assert "HF_TOKEN" in jobs.output
        assert "hf_secret" not in jobs.output

    def test_more_windows_than_nsys_was_started_for(self, jobs):
        """A window beyond the number that nsys was started for is lost, and the error states both numbers."""
        with jobs.server(windows=1) as url:
            jobs.record(URL=url)
        assert jobs.statuses() == {2: "complete", 4: "lost"}
        assert "this is window 2 of the process, and nsys was started for 1" in jobs.entries()[4]["error"]

    @pytest.mark.parametrize(
        ("manner", "reason"),
        [
            ("never", "nsys wrote no report to"),
            ("empty", "was empty, older than the window or still growing"),
            ("unfinished", "is not a report yet"),
            ("foreign", "nsys wrote no report to"),
        ],
    )
    def test_a_report_that_never_arrives(self, jobs, manner, reason):
        """Without a valid report the entry is lost after the timeout, with the reason and the folder.
        `stepprof check` fails.
        """
        jobs.config["nsys"]["report_timeout_seconds"] = 2
        with jobs.server(manner=manner) as url:
            jobs.record(URL=url)
        entries = jobs.entries()
        assert {entry["status"] for entry in entries.values()} == {"lost"}
        assert reason in entries[2]["error"]
        assert str(jobs.reports) in entries[2]["error"]
        assert entries[2]["health"] == "ok"
        assert main(["check", str(jobs.folder / "runs" / "job")]) == 1

    def test_the_end_of_the_run(self, jobs):
        """The timeout of the shutdown bounds the wait for reports; missing reports make the entries lost."""
        with jobs.server(manner="never") as url:
            jobs.record(URL=url, SHUTDOWN="2")
        assert jobs.statuses() == {2: "lost", 4: "lost"}
        assert "when the process ended" in jobs.entries()[4]["error"]

    def test_an_engine_that_nsys_has_not_started(self, jobs):
        """If the engine does not run under nsys, its entry is lost and says so."""
        with jobs.server(nsys=False) as url:
            jobs.record(URL=url)
        assert jobs.statuses() == {2: "lost", 4: "lost"}
        assert "the engine was not started under nsys" in jobs.entries()[2]["error"]

    def test_a_participant_on_another_host(self, jobs):
        """The process on another host cannot be inspected. Its report is used if `trace_dir` is given;
        otherwise the entry is partial.
        """
        far = "from stepprof.remote import nsys_server\nnsys_server.listener = lambda port: None\n"
        folder = jobs.folder / "shared"
        folder.mkdir()
        with jobs.server(output=folder / "engine_%h_%p") as url:
            jobs.record(URL=url, BEFORE=f"{far}attached = {{'kind': 'vllm', 'trace_dir': {str(folder)!r}}}")
            assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()
            jobs.record(URL=url, BEFORE=f"{far}{SERVER}", RUN="again")
        assert jobs.statuses(run="again") == {2: "partial", 4: "partial"}
        assert "trace_dir" in jobs.entries(run="again")[2]["error"]

    def test_an_exception_out_of_the_window(self, jobs):
        """If the body raises, the engine's range ends, and its report is complete."""
        step = """
try:
    with stepprof.profile_step(step, role="rollout"):
        raise KeyError("mine")
except KeyError:
    pass
"""
        with jobs.server() as url:
            jobs.record(URL=url, STEP=step)
        assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()
        assert "mine" in jobs.entries()[2]["body_error"]
        assert jobs.report(4)["range"] == 2


class TestObject:
    """The engine's workers are children of this process, so one nsys session records all of them."""

    def test_reports_are_moved_to_the_step(self, jobs):
        """The engine's reports are moved to the step, even if this process itself records nothing."""
        jobs.record(nsys={}, BEFORE=OBJECT)
        assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()
        assert [jobs.report(step)["range"] for step in (2, 4)] == [1, 2]

    def test_next_to_this_processs_own_capture(self, jobs):
        """This process and the engine share one range and one report. The process has the report; the
        engine's entry refers to it.
        """
        jobs.config |= {"backend": "nsys", "roles": {}}
        jobs.record(nsys={"engine": False}, BEFORE=OBJECT)
        assert jobs.statuses(key="windows") == {2: "complete", 4: "complete"}, jobs.entries("windows")
        for number, (step, entry) in enumerate(sorted(jobs.entries().items()), 1):
            assert entry["status"] == "joined", entry
            assert entry["capture"] == {"step": step, "stem": "rollout/rank-0"}
            assert jobs.report(step, "rollout/rank-0.nsys-rep")["range"] == number
        assert main(["check", str(jobs.folder / "runs" / "job")]) == 0

    def test_a_server_that_this_process_has_started(self, jobs):
        """A server that this process started is in the same nsys session, so both share one range and one
        report.
        """
        jobs.config |= {"backend": "nsys", "roles": {}}
        start = f"""
import atexit, subprocess
server = subprocess.Popen([sys.executable, {str(HERE / "engines.py")!r}], stdout=subprocess.PIPE, text=True)
atexit.register(server.stdout.close)
atexit.register(server.wait)
atexit.register(server.terminate)
os.environ["URL"] = "http://127.0.0.1:" + server.stdout.readline().strip()
{SERVER}
"""
        jobs.record(nsys={"engine": False}, BEFORE=start)
        assert jobs.statuses(key="windows") == {2: "complete", 4: "complete"}, jobs.entries("windows")
        assert jobs.statuses() == {2: "joined", 4: "joined"}, jobs.entries()
        assert [jobs.report(step, "rollout/rank-0.nsys-rep")["range"] for step in (2, 4)] == [1, 2]

    def test_a_server_with_an_nsys_of_its_own(self, jobs):
        """This process starts the server under a second nsys. The process and the server each have their
        own reports.
        """
        jobs.config |= {"backend": "nsys", "roles": {}}
        server = jobs.command([sys.executable, str(HERE / "engines.py")])
        start = f"""
import atexit, subprocess
late = {{**os.environ, "NSYS_STAND_IN": "late 1"}}
server = subprocess.Popen({server!r}, env=late, stdout=subprocess.PIPE, text=True, start_new_session=True)
atexit.register(server.stdout.close)
atexit.register(server.wait)
atexit.register(os.killpg, server.pid, 15)
os.environ["URL"] = "http://127.0.0.1:" + server.stdout.readline().strip()
{SERVER}
"""
        jobs.record(nsys={"engine": False}, BEFORE=start)
        assert jobs.statuses(key="windows") == {2: "complete", 4: "complete"}, jobs.entries("windows")
        assert jobs.statuses() == {2: "complete", 4: "complete"}, jobs.entries()
        windows = jobs.entries("windows")
        for number, step in enumerate((2, 4), 1):
            ours, theirs = jobs.report(step, "rollout/rank-0.nsys-rep"), jobs.report(step)
            assert (ours["range"], theirs["range"]) == (number, number)
            assert ours["pid"] == windows[step]["pid"] != theirs["pid"]

    def test_inside_a_window_of_this_process(self, jobs):
        """Inside a window of this process the engine is not started, because its stop would end the range
        of that window.
        """
        jobs.config |= {"backend": "nsys", "roles": {}}
        step = """
with stepprof.profile_step(step):
    with stepprof.profile_step(step, role="rollout"):
        pass
    import ctypes
assert engine.calls == [], engine.calls
"""
        jobs.record(nsys={"engine": False, "roles": []}, BEFORE=OBJECT, STEP=step)
        assert [entry["status"] for entry in jobs.entries().values()] == ["joined", "joined"]
        assert jobs.entries()[2]["capture"] == {"step": 2, "stem": "step/rank-0"}
        assert [jobs.report(step, "step/rank-0.nsys-rep")["range"] for step in (2, 4)] == [1, 2]
        assert main(["check", str(jobs.folder / "runs" / "job")]) == 0

    def test_without_nsys_the_recording_is_lost_with_a_reason(self, jobs):
        """Without nsys the entry is lost, and its error says that the engine was not started under nsys."""
        jobs.record(BEFORE=OBJECT)
        assert jobs.statuses() == {2: "lost", 4: "lost"}
        assert "the engine was not started under nsys" in jobs.entries()[2]["error"]


class TestKeptCount:
    @pytest.mark.parametrize("content", [b"", b"\xff", "²".encode(), b"-1", b"7" * 5000, b"1e3", b"0x7"])
    def test_an_invalid_count_file_starts_anew(self, tmp_path, content):
        """If the file with the count is invalid, counting begins at 1 and the next count is stored."""
        (tmp_path / "kept").write_bytes(content)
        assert KeptCount(tmp_path / "kept").begin((2, "a")) == 1
        assert KeptCount(tmp_path / "kept").begin((2, "a")) == 2

    @pytest.mark.parametrize("trap", ["pipe", "link"])
    def test_a_count_path_that_is_not_a_file(self, tmp_path, trap):
        """A pipe in the place of the count file does not block, and a link is not followed."""
        (tmp_path / "seven").write_text("7")
        os.mkfifo(tmp_path / "kept") if trap == "pipe" else (tmp_path / "kept").symlink_to("seven")
        assert KeptCount(tmp_path / "kept").begin((2, "a")) == 1
        assert (tmp_path / "seven").read_text() == "7"


@needs_root
def test_the_environment_of_another_users_server():
    """The environment of another user's server is not read, because it could name any folder of the
    driver's user.
    """
    with server_of_other_user({}) as port:
        pid = listener(port)
        assert pid is not None
        assert environment_of(pid) is None
    assert environment_of(os.getpid())


class TestRangeCount:
    """The count of nsys's ranges: a start inside a range has no effect, and neither has a stop outside."""

    def test_engines_of_one_session(self):
        """Two engines that start in one range share it, and the range belongs to the first one."""
        count = RangeCount()
        first, second = (2, "rollout/replica-0"), (2, "rollout/replica-1")
        assert (count.begin(first), count.begin(second)) == (1, 1)
        count.end(1)
        count.end(1)
        assert (count.ended, count.holder(1)) == (1, first)
        assert count.begin(second) == 2
        assert count.holder(2) == second

    def test_this_process_claims_its_range_first(self):
        """If this process joins the range of an engine, the range belongs to this process until it ends."""
        count = RangeCount()
        own = (2, "rollout/rank-0")
        count.begin((2, "rollout/replica-0"))
        assert not count.of_this_process
        assert count.begin(own, own=True) == 1
        assert count.of_this_process
        assert count.holder(1) == own
        count.end(1)
        assert not count.of_this_process

    def test_a_late_stop(self):
        """A late stop does not end a range that has begun in the meantime."""
        count = RangeCount()
        count.begin((2, "a"))
        count.end(1)
        count.begin((3, "a"))
        count.end(1)
        assert (count.open, count.ended) == (True, 1)

    def test_a_range_that_never_began_is_not_counted(self):
        """A withdrawn range does not count, unless another participant has begun it."""
        count = RangeCount()
        count.withdraw(count.begin((2, "a")))
        assert count.begin((3, "a")) == 1
        count.begin((3, "own"), own=True)
        count.withdraw(1)
        assert (count.begun, count.open) == (1, True)
