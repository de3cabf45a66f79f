"""The work after a recording in real processes: commands, uploads and deletion. None of
it changes the job's result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filing
import pytest

from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.run.manifest import read_step
from stepprof.run.status import read_statuses

LOOP = """
import json, logging, os, pathlib, signal, sys, time
import stepprof

logging.basicConfig(level="INFO", stream=sys.stdout)
rank, world, options = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
config = {"backend": "filing", "output_dir": "runs", "ranks": "all", "steps": "2,4", **options.get("config", {})}
stepprof.init(config, rank=rank, world_size=world, run_id="job")

def together(name):
    # as a collective would: nobody goes on alone
    pathlib.Path(f"{name}.{rank}").touch()
    there = options.get("there", world)
    while len(list(pathlib.Path().glob(f"{name}.*"))) < there:
        time.sleep(0.005)

total = 0
for step in range(1, options.get("steps", 5) + 1):
    together(f"step-{step}")
    with stepprof.profile_step(step, role="actor"):
        total += step
    if step == options.get("code_after"):
        exec(options["code"])
    if step == options.get("dies_after") and rank == options.get("dies", rank):
        time.sleep(options.get("dies_in", 0))
        os.kill(os.getpid(), signal.SIGKILL)
    if step in options.get("rest_after", ()):
        time.sleep(options["rest"])
began = time.monotonic()
stepprof.shutdown(options.get("timeout"))
print("shutdown", time.monotonic() - began)
print("result", total, flush=True)
sys.exit(options.get("status", 0))
"""


class Job:
    """Processes of one run with five steps. Steps 2 and 4 are recorded unless the test changes that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "job"
        self.printed: dict[int, str] = {}
        self._ranks: dict[int, subprocess.Popen[str]] = {}
        (folder / "loop.py").write_text(LOOP)
        filing.install(folder / "packages")
        (folder / "counts").mkdir()
        self.env = {
            "PYTHONPATH": os.pathsep.join((str(folder / "packages"), *sys.path)),
            "FLAKY_COUNTS": str(folder / "counts"),
            "FILING_MODE": "thread",
        }

    def start(self, rank: int = 0, world: int = 1, script: str = "loop.py", **options: Any) -> None:
        self._ranks[rank] = subprocess.Popen(
            [sys.executable, "-W", "error", script, str(rank), str(world), json.dumps(options)],
            cwd=self.folder,
            env={**os.environ, **self.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, *, killed: tuple[int, ...] = (), status: int = 0, steps: int = 5) -> None:
        """Wait for all processes. Check that each has the result and the exit
        status of a job without stepprof.
        """
        for rank, process in self._ranks.items():
            self.printed[rank] = process.communicate(timeout=200)[0]
            if rank in killed:
                assert process.returncode == -signal.SIGKILL
            else:
                assert f"result {sum(range(1, steps + 1))}" in self.printed[rank], self.printed[rank]
                assert process.returncode == status, self.printed[rank]
                assert "Traceback" not in self.printed[rank], self.printed[rank]
        self._ranks.clear()

    def go(self, **options: Any) -> dict[int, dict[str, Any]]:
        """Run one rank from begin to end, and return the manifests of its steps."""
        self.start(**options)
        self.end(status=options.get("status", 0))
        return {step: read_step(self.run, step) for step in (2, 4)}

    def shutdown_seconds(self, rank: int = 0) -> float:
        (line,) = [line for line in self.printed[rank].splitlines() if line.startswith("shutdown")]
        return float(line.split()[1])

    def kill(self) -> None:
        for process in self._ranks.values():
            process.kill()
            process.communicate()

    @property
    def ran(self) -> list[str]:
        """Return what the commands have noted, in the order in which they ran."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.kill()


NOTE = ["sh", "-c", "echo $STEPPROF_STEP $STEPPROF_STATUS $STEPPROF_BYTES $STEPPROF >> ran"]


class TestCommand:
    def test_once_per_step_on_one_of_two_ranks(self, job: Job) -> None:
        """The command runs once per step on one of two ranks, after both have recorded it. Its environment
        has the facts of the run, and it inherits no span file or socket.
        """
        facts = 'env | grep ^STEPPROF | sort > facts.$STEPPROF_STEP; ls -l /proc/self/fd | grep -c "\\.jsonl\\|socket" >> facts.$STEPPROF_STEP; '
        command = ["sh", "-c", facts + NOTE[2]]
        job.env["FILING_SECONDS"] = "0.3"
        for rank in (0, 1):
            job.start(rank, 2, config={"on_complete": command}, rest_after=[5], rest=0.2 * rank)
        job.end()
        assert sorted(job.ran) == ["2 complete 2000 0", "4 complete 2000 0"]
        step = job.run / "step-000002"
        assert (job.folder / "facts.2").read_text().splitlines() == [
            "STEPPROF=0",
            "STEPPROF_BYTES=2000",
            f"STEPPROF_RUN={job.run}",
            "STEPPROF_RUN_ID=job",
            "STEPPROF_STATUS=complete",
            "STEPPROF_STEP=2",
            f"STEPPROF_STEP_DIR={step}",
            "0",
        ]
        (entry,) = read_step(job.run, 2)["completions"]
        assert (entry["status"], entry["exit_status"], entry["error"]) == ("complete", 0, None)
        assert verify_run(job.run).ok

    def test_a_hanging_command_is_killed_with_its_children(self, job: Job) -> None:
        """A command that hangs is killed with its children at its time limit, and the job has its result."""
        command = ["sh", "-c", "sleep 600 & echo $! >> children; echo waiting; wait"]
        config = {"on_complete": command, "on_complete_timeout_seconds": 0.3, "strict": True}
        manifests = job.go(config=config)
        for manifest in manifests.values():
            (entry,) = manifest["completions"]
            assert (entry["status"], entry["exit_status"]) == ("failed", -signal.SIGKILL)
            assert entry["error"] == "killed: it did not end within 0.3 s"
            assert entry["output"] == "waiting\n"
        children = (job.folder / "children").read_text().split()
        assert len(children) == 2
        assert not any(_lives(int(child)) for child in children)

    def test_at_shutdown_the_command_gets_the_remaining_time(self, job: Job) -> None:
        """The shutdown lasts no longer than its timeout, and the command is killed with this reason."""
        config = {"on_complete": ["sleep", "600"], "on_complete_when": "run"}
        job.go(config=config, timeout=1.0)
        assert job.shutdown_seconds() < 5
        (entry,) = json.loads((job.run / "after" / "on-complete.json").read_text())["completions"]
        assert entry["error"] == "killed: the run ended"

    @pytest.mark.parametrize(
        ("command", "error"),
        [
            (["./no-such-command"], "it cannot be started: [Errno 2]"),
            (["sh", "-c", "echo oh no >&2; exit 3"], "it ended with exit status 3"),
            (["sh", "-c", "kill -9 $$"], "it ended with signal 9"),
        ],
    )
    def test_a_failed_command_is_reported(self, job: Job, command: list[str], error: str) -> None:
        """The manifest and the log report the failed command. The exit status of the job is unchanged."""
        manifests = job.go(config={"on_complete": command, "strict": True}, status=7)
        for manifest in manifests.values():
            (entry,) = manifest["completions"]
            assert entry["status"] == "failed"
            assert entry["error"].startswith(error)
        assert job.printed[0].count("on_complete.failed") == 2
        if command[0] == "./no-such-command":
            assert "on_complete.will_fail" in job.printed[0]
        if "oh no" in command[-1]:
            assert manifests[2]["completions"][0]["output"] == "oh no\n"

    def test_a_command_whose_exit_status_is_lost_is_not_complete(self, job: Job) -> None:
        """A job that ignores SIGCHLD never gets the exit status of its children."""
        code = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"
        manifests = job.go(config={"on_complete": ["sh", "-c", "exit 3"]}, code_after=1, code=code)
        for manifest in manifests.values():
            (entry,) = manifest["completions"]
            assert (entry["status"], entry["exit_status"]) == ("failed", None)
            assert entry["error"].startswith("it ended, but its exit status is not known")

    def test_a_command_that_prints_without_end(self, job: Job) -> None:
        """Of a command that prints without end, the last 2,000 characters are kept, and the
        command fails at its time limit.
        """
        config = {"on_complete": ["yes", "x" * 50], "on_complete_timeout_seconds": 1.0, "steps": "2"}
        job.start(config=config)
        began = time.monotonic()
        job.end()
        (entry,) = read_step(job.run, 2)["completions"]
        assert time.monotonic() - began < 20
        assert (len(entry["output"]), entry["status"]) == (2000, "failed")

    def test_a_rank_that_dies_before_its_export(self, job: Job) -> None:
        """If a rank dies before its export, the command still runs, with the status `lost`, even
        if that rank was the leader.
        """
        job.env["FILING_SECONDS"] = "0.5"
        config = {"on_complete": NOTE}
        for rank in (0, 1):
            job.start(rank, 2, config=config, dies=0, dies_after=2, steps=2)
            if rank == 0:
                _wait(lambda: (job.run / "after" / "leader.json").exists())
        job.end(killed=(0,), steps=2)
        assert job.ran == ["2 lost 1000 0"]

    def test_the_last_process_runs_the_command_once(self, job: Job) -> None:
        """The command runs once at the end of the run. A job that goes on in the same run runs it again."""
        command = ["sh", "-c", "echo $STEPPROF_RECORDED_STEPS $STEPPROF_STATUS ${STEPPROF_STEP-none} >> ran"]
        config = {"on_complete": command, "on_complete_when": "run"}
        for rank in (0, 1):
            job.start(rank, 2, config=config, rest_after=[5], rest=0.3 * (1 - rank))
        job.end()
        assert job.ran == ["2,4 complete none"]
        for path in job.folder.glob("step-*"):
            path.unlink()
        job.go(config=config)
        assert job.ran == ["2,4 complete none"] * 2

    def test_steps_that_a_killed_job_left_are_taken_when_it_is_resumed(self, job: Job) -> None:
        """The resumed job runs the command for a step that the killed job had recorded."""
        job.start(config={"on_complete": NOTE}, dies_after=2, steps=2)
        job.end(killed=(0,))
        assert job.ran == []
        job.start(config={"on_complete": NOTE, "steps": "none"}, steps=1)
        job.end(steps=1)
        assert [line.split()[0] for line in job.ran] == ["2"]

    def test_a_command_that_ran_when_the_job_was_killed_is_lost(self, job: Job) -> None:
        """A command that ran when the job was killed is lost, and the resumed job does not run it again."""
        config = {"on_complete": ["sh", "-c", "echo $STEPPROF_STEP >> ran; sleep 3"], "steps": "2"}
        job.start(config=config, dies_after=3, dies_in=1.8)
        _wait(lambda: job.ran == ["2"])
        assert read_step(job.run, 2)["completions"][0]["status"] == "running"
        job.end(killed=(0,))
        assert read_step(job.run, 2)["completions"][0]["status"] == "lost"
        job.start(config={**config, "steps": "none"}, steps=1)
        job.end(steps=1)
        assert job.ran == ["2"]


class TestRunDirectory:
    @pytest.mark.parametrize("strict", [False, True])
    def test_a_run_directory_that_becomes_unwritable(self, job: Job, strict: bool) -> None:
        """If the run directory becomes a file, in which no user can write, the log says
        so, and the job ends as usual.
        """
        gone = """
import shutil
os.rename('runs/job', 'runs/away')
while not os.path.isfile('runs/job'):  # what is written at this very moment makes the folder anew
    shutil.rmtree('runs/job', ignore_errors=True)
    try:
        open('runs/job', 'w').close()
    except IsADirectoryError:
        pass
"""
        config = {"on_complete": NOTE, "keep_steps": 1, "upload": f"file://{job.folder}/up", "steps": "2"}
        job.start(config={**config, "strict": strict}, code_after=3, code=gone, rest_after=[5], rest=1.2)
        job.end()
        assert "cannot be" in job.printed[0]


class TestUpload:
    def test_a_copy_is_a_run(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        """Both ranks upload and verify their artifacts and manifests. `check`
        and `merge` can read the copy.
        """
        url = f"file://{job.folder}/up"
        for rank in (0, 1):
            job.start(
                rank,
                2,
                config={"upload": url, "on_complete": ["sh", "-c", "echo $STEPPROF_UPLOADED_TO >> ran"]},
            )
        job.end()
        copy = job.folder / "up" / "job"
        uploads = read_step(job.run, 2)["uploads"]
        assert [
            (each["path"], each["status"], each["bytes"], each["verified"], each["tries"]) for each in uploads
        ] == [(f"actor/rank-{rank}.trace.json", "uploaded", 1000, "size", 1) for rank in (0, 1)]
        assert uploads[0]["url"] == f"{url}/job/step-000002/actor/rank-0.trace.json"
        assert read_step(copy, 2)["uploads"] == uploads
        assert job.ran == [f"{url}/job"] * 2
        result = verify_run(copy)
        assert (result.problems, result.artifacts) == ([], 4)
        assert sorted(path.name for path in (copy / "spans").iterdir()) == [
            "rank-0.000001.jsonl",
            "rank-1.000001.jsonl",
        ]
        assert main(["merge", str(copy), "--step", "2"]) == 0
        assert "4 sources" in capsys.readouterr().out
        assert not list(copy.rglob(".*"))

    @pytest.mark.parametrize("word", ["refuse", "lose", "half", "die"])
    def test_a_failed_upload_is_retried(self, job: Job, word: str) -> None:
        """An upload is repeated until the stored object equals the file. The store refuses, loses or halves
        a file, or its client crashes.
        """
        job.env |= {"FLAKY": f"{word}={1 if word == 'die' else 2}", "FLAKY_ON": "trace.json"}
        manifests = job.go(
            config={"upload": f"flaky://{job.folder}/up", "strict": True}, rest_after=[2], rest=0.2
        )
        assert [each["status"] for step in (2, 4) for each in manifests[step]["uploads"]] == ["uploaded"] * 2
        assert verify_run(job.folder / "up" / "job").ok
        if word != "die":
            assert manifests[2]["uploads"][0]["tries"] == 3
        else:
            assert "the store's client crashed" in job.printed[0]

    def test_a_permanent_failure_is_in_the_manifest(
        self, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """If every try fails, the manifest and the status give the reason. One more try is made at
        the end, and the file stays.
        """
        job.env |= {"FLAKY": "refuse=1000", "FLAKY_ON": "step-000004/actor"}
        manifests = job.go(config={"upload": f"flaky://{job.folder}/up"}, timeout=200.0)
        assert manifests[2]["uploads"][0]["status"] == "uploaded"
        (entry,) = manifests[4]["uploads"]
        assert entry["status"] == "failed"
        assert entry["error"] == "PermissionError: the store says no"
        assert len((job.folder / "counts" / "refuse").read_text()) == 4 + 2
        assert (job.run / "step-000004/actor/rank-0.trace.json").exists()
        (status,) = read_statuses(job.run)
        assert (
            status["last_error"]
            == "upload: step-000004/actor/rank-0.trace.json: PermissionError: the store says no"
        )
        main(["ls", str(job.run)])
        assert "1 (1 not uploaded)" in capsys.readouterr().out

    def test_a_hanging_upload_is_killed(self, job: Job) -> None:
        """An upload that hangs is killed at its time limit, and both files are uploaded."""
        job.env |= {"FLAKY": "hang=1", "FLAKY_ON": "step-000002/actor"}
        config = {"upload": f"flaky://{job.folder}/up", "upload_timeout_seconds": 1.5}
        manifests = job.go(config=config, rest_after=[4], rest=0.1)
        assert [each["status"] for step in (2, 4) for each in manifests[step]["uploads"]] == ["uploaded"] * 2
        assert "the upload timed out" in job.printed[0]

    def test_a_shutdown_waits_at_most_its_timeout(self, job: Job) -> None:
        """The shutdown waits at most its timeout, and the log reports the unfinished uploads."""
        job.env |= {"FLAKY": "hang=1000", "FLAKY_ON": "actor"}
        manifests = job.go(config={"upload": f"flaky://{job.folder}/up", "strict": True}, timeout=1.5)
        assert job.shutdown_seconds() < 6
        assert "upload.unfinished" in job.printed[0]
        assert all(each["status"] != "uploaded" for step in (2, 4) for each in manifests[step]["uploads"])
        assert verify_run(job.run).ok

    def test_nothing_is_overwritten(self, job: Job) -> None:
        """A file in the store with the same name and another size stays. The manifest
        says why ours was not uploaded.
        """
        there = job.folder / "up/job/step-000002/actor/rank-0.trace.json"
        there.parent.mkdir(parents=True)
        there.write_text("somebody else's")
        manifests = job.go(config={"upload": f"file://{job.folder}/up"})
        assert there.read_text() == "somebody else's"
        (entry,) = manifests[2]["uploads"]
        assert entry["error"] == "another file has this name already, with 15 bytes"
        assert manifests[4]["uploads"][0]["status"] == "uploaded"

    def test_modules_in_the_working_directory_do_not_shadow_the_program(self, job: Job) -> None:
        """Modules in the working directory with the names of the uploader's modules are not imported."""
        (job.folder / "scripts").mkdir()
        (job.folder / "loop.py").rename(job.folder / "scripts" / "train.py")
        for name in ("json", "random", "fsspec"):
            (job.folder / f"{name}.py").write_text("raise RuntimeError('no such thing')")
        manifests = job.go(script="scripts/train.py", config={"upload": f"file://{job.folder}/up"})
        assert [each["status"] for step in (2, 4) for each in manifests[step]["uploads"]] == ["uploaded"] * 2

    def test_a_missing_package_is_warned_about(self, job: Job) -> None:
        """If the package of the store is missing, there is one warning at `init`, and
        the manifest has the reason.
        """
        (job.folder / "packages" / "sitecustomize.py").write_text(
            "import importlib.util as u\nfind = u.find_spec\n"
            "u.find_spec = lambda name, *rest: None if name == 's3fs' else find(name, *rest)\n"
        )
        manifests = job.go(config={"upload": "s3://bucket/x", "on_complete": NOTE})
        assert job.printed[0].count("upload.refused") == 1
        assert "pip install s3fs" in job.printed[0]
        assert [each["status"] for each in manifests[2]["uploads"]] == ["failed"]
        assert "needs s3fs, which is not installed" in manifests[2]["uploads"][0]["error"]
        assert sorted(job.ran) == ["2 complete 1000 0", "4 complete 1000 0"]


class TestKeeping:
    def test_the_oldest_steps_go(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        """The oldest artifacts are deleted. Manifests and other files stay, and `ls`, `show`,
        `check` and `merge` report it.
        """
        job.env["FILING_BYTES"] = "2000"
        config = {"keep_bytes": 9000, "steps": "1-8"}
        for rank in (0, 1):
            job.start(rank, 2, config=config, steps=8, rest_after=[4], rest=2.5)
        job.end(steps=8)
        there = sorted(path.relative_to(job.run).as_posix() for path in job.run.rglob("*.trace.json"))
        assert there == [
            f"step-{step:06d}/actor/rank-{rank}.trace.json" for step in (7, 8) for rank in (0, 1)
        ]
        (entry,) = read_step(job.run, 1)["pruned"]
        assert (entry["files"], entry["bytes"], entry["reason"], entry["kept"]) == (
            2,
            4000,
            "keep_bytes = 9000",
            [],
        )
        assert len(read_step(job.run, 1)["windows"]) == 2
        assert verify_run(job.run).problems == []
        for arguments, word in (
            (["ls"], "2 (2 pruned)"),
            (["show"], "pruned: 2 artifacts"),
            (["check"], "pruned"),
        ):
            assert main([*arguments, str(job.run), *(["--step", "1"] if arguments == ["show"] else [])]) == 0
            assert word in capsys.readouterr().out
        main(["merge", str(job.run), "--step", "1"])
        assert "deleted" in capsys.readouterr().out

    def test_a_step_is_deleted_after_its_upload_and_command(self, job: Job) -> None:
        """A step is deleted after it was uploaded and its command has ended, and
        its copy stays in the store.
        """
        command = ["sh", "-c", "ls $STEPPROF_STEP_DIR/actor | wc -l >> ran"]
        config = {"keep_steps": 1, "upload": f"file://{job.folder}/up", "on_complete": command}
        manifests = job.go(config=config)
        assert job.ran == ["1", "1"]
        assert [len(manifests[step]["pruned"]) for step in (2, 4)] == [1, 0]
        assert not (job.run / "step-000002" / "actor").exists()
        assert (job.folder / "up/job/step-000002/actor/rank-0.trace.json").exists()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Start a moto server with a bucket on this machine, and yield its URL."""
    script = (
        "from moto.server import ThreadedMotoServer\nimport boto3, sys\n"
        "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False); server.start()\n"
        "url = 'http://%s:%s' % server.get_host_and_port()\n"
        "boto3.client('s3', endpoint_url=url, region_name='us-east-1').create_bucket(Bucket='bucket')\n"
        "print(url, flush=True); sys.stdin.read()\n"
    )
    env = {**os.environ, **AWS}
    server = subprocess.Popen(
        [sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    assert url, "moto and boto3 are needed: pip install -c constraints.txt -e '.[dev]'"
    yield url
    server.kill()
    server.communicate()


AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.mark.s3
class TestS3:
    def test_a_run_in_a_bucket(self, job: Job, s3: str) -> None:
        """The upload is verified by the store's checksum, and the downloaded copy is a valid run."""
        job.env |= {**AWS, "AWS_ENDPOINT_URL": s3}
        manifests = job.go(config={"upload": "s3://bucket/profiles"})
        assert [each["verified"] for step in (2, 4) for each in manifests[step]["uploads"]] == ["md5", "md5"]
        copy = job.folder / "copy"
        script = "import fsspec, sys; fsspec.filesystem('s3').get('bucket/profiles/job', sys.argv[1], recursive=True)"
        subprocess.run(
            [sys.executable, "-c", script, str(copy)], env={**os.environ, **job.env}, check=True, timeout=200
        )
        result = verify_run(copy)
        assert (result.problems, result.artifacts) == ([], 2)

    def test_no_such_bucket(self, job: Job, s3: str) -> None:
        """If the bucket does not exist, the upload fails with the store's reason."""
        job.env |= {**AWS, "AWS_ENDPOINT_URL": s3}
        manifests = job.go(config={"upload": "s3://no-such-bucket/x", "steps": "2"}, timeout=20.0)
        (entry,) = manifests[2]["uploads"]
        assert entry["status"] == "failed"
        assert "bucket" in entry["error"].lower()


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait(test: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.02)
