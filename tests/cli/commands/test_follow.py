"""The command `stepprof follow` next to a real job, and `stepprof run --follow`: neither changes the job."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import filing
import pytest

from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.follow.follower import stored_name
from stepprof.run.manifest import read_step
from stepprof.run.runs import steps
from stepprof.run.spans import read_spans

LOOP = """
import os, signal, sys, time
import stepprof

ending = sys.argv[1]
stepprof.init(run_id="job")
for step in range(1, 6):
    with stepprof.profile_step(step, role="actor"):
        pass
    if step == 2 and ending == "leave":
        path = "runs/job/step-000002/manifest/actor-rank-0.json"
        while '"exporter"' not in (text := open(path).read()) and '"complete"' not in text:
            time.sleep(0.02)
    if step == 2 and ending in ("die", "leave"):
        os.kill(os.getpid(), signal.SIGKILL)
    while step == 4 and ending == "wait" and not os.path.exists("go"):
        time.sleep(0.02)
stepprof.shutdown()
print([name for name in sys.modules if name.startswith(("tenacity", "stepprof.follow"))], flush=True)
sys.exit(int(ending) if ending.isdigit() else 0)
"""


class Inline(dict):
    """A table of a TOML file in one line."""

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in self.items()) + "}"


class Place:
    """A folder with a job of five steps, of which it records two, and a configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "job"
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "loop.py").write_text(LOOP)
        filing.install(folder / "packages")
        path = os.pathsep.join((str(folder / "packages"), *filter(None, sys.path)))
        self.env = {
            **os.environ,
            "PYTHONPATH": path,
            "FILING_MODE": "thread",
            "STEPPROF_CONFIG": "config.toml",
        }

    def configure(self, **more: object) -> None:
        content = {"output_dir": "runs", "backend": "filing", "steps": "2,4", "ranks": "all", **more}
        lines = [
            f"{key} = {value if isinstance(value, Inline) else json.dumps(value)}\n"
            for key, value in content.items()
        ]
        (self.folder / "config.toml").write_text("".join(lines))

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self.processes.append(process)
        return process

    def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command of stepprof to its end; return its exit status, stdout and stderr."""
        process = self.start("-m", "stepprof", *arguments)
        out, err = process.communicate(timeout=200)
        assert "Traceback" not in err, err
        return process.returncode, out, err

    @property
    def ran(self) -> list[str]:
        """What the command has noted."""
        path = self.folder / "ran"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


NOTE = ["sh", "-c", "echo $STEPPROF_STEP $STEPPROF_STATUS $STEPPROF_UPLOADED_TO >> ran"]


class TestRunFollow:
    def test_a_job_with_its_follower(self, place, capsys) -> None:
        """The job runs as without a follower, with its exit status. When `stepprof run` ends, all is done, and
        the copy is a run.
        """
        url = f"file://{place.folder}/up"
        place.configure(on_complete=NOTE, upload=url, keep_steps=1)
        status, out, err = place.command("run", "--follow", "--", sys.executable, "loop.py", "7")
        assert status == 7
        assert out == "[]\n"
        assert "the follower ended" not in err
        copy = place.folder / "up" / stored_name(place.run)
        assert place.ran == [f"{step} complete {url}/{copy.name}" for step in (2, 4)]
        assert [len(read_step(place.run, step)["pruned"]) for step in (2, 4)] == [1, 0]
        for path, artifacts in ((place.run, 1), (copy, 2)):
            result = verify_run(path)
            assert (result.problems, result.artifacts) == ([], artifacts)
        assert [path.name for path in (copy / "spans").iterdir()] == ["rank-0.000001.jsonl"]
        assert main(["merge", str(copy), "--step", "2"]) == 0
        for arguments, word in ((["show", "--step", "2"], "uploaded: 1 artifact"), (["check"], "pruned")):
            assert main([arguments[0], str(place.run), *arguments[1:]]) == 0
            assert word in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("ending", "mode", "seconds", "ran"),
        [("die", "thread", 60, "2 lost"), ("leave", "fork", 3, "2 complete")],
    )
    def test_a_job_that_dies(self, place, ending, mode, seconds, ran) -> None:
        """If the job is killed during an export, the command still runs, with the status `lost`. The follower waits
        for a forked export: it outlives the job, and completes the manifest.
        """
        place.env |= {"FILING_SECONDS": str(seconds), "FILING_MODE": mode}
        place.configure(on_complete=NOTE)
        status, _, _ = place.command("run", "--follow", "--", sys.executable, "loop.py", ending)
        assert status in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert place.ran == [ran]

    def test_a_follower_that_fails(self, place) -> None:
        """A follower that fails does not change the exit status of the job; the reason is printed."""
        place.configure(upload=f"file://{place.folder}/config.toml/up")
        status, _, err = place.command("run", "--follow", "--", sys.executable, "loop.py", "0")
        assert status == 0
        assert "an upload failed" in err
        assert "the follower ended with exit status 1" in err
        assert verify_run(place.run).problems == []

    def test_nothing_to_follow_with(self, place) -> None:
        """Without a key for it, neither the job nor a follower begins."""
        place.configure()
        status, out, err = place.command("run", "--follow", "--", sys.executable, "loop.py", "0")
        assert (status, out) == (2, "")
        assert "nothing to do: set on_complete, upload, keep_steps, keep_bytes" in err


WATCHED = """
import time
import stepprof
stepprof.init(run_id="job")
step, until = 0, time.monotonic() + 100
while not stepprof.state().recorded_steps and time.monotonic() < until:
    step += 1
    with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
        time.sleep(1.0 if step % 30 == 0 else 0.05)
stepprof.shutdown()
"""


class TestWatch:
    def test_a_slow_step_is_recorded(self, place) -> None:
        """A slow step of a running job is one line of the follower, and a later step is recorded."""
        (place.folder / "loop.py").write_text(WATCHED)
        place.configure(backend="null", steps="none", watch=Inline(enabled=True, window=50, min_steps=10, skip_first=2, min_seconds=0.5, max_captures=1))  # fmt: skip
        status, _, err = place.command("run", "--follow", "--", sys.executable, "loop.py")
        assert status == 0
        # of a step that was missed there is a claim without a recording
        claims = [json.loads(path.read_text()) for path in (place.run / "watch").glob("*.json")]
        (claim,) = [claim for claim in claims if claim["capture_step"] in steps(place.run)]
        # which step is the slow one: a busy machine may make another one slow
        assert claim["what"] in ("slow region", "slow step")
        assert claim["seconds"] > 0.5
        assert steps(place.run) == [claim["capture_step"]]
        assert f"capture=step {claim['capture_step']}" in err
        marks = [span for span in read_spans(place.run) if span["kind"] == "mark"]
        assert (claim["what"], claim["step"], 0) in [
            (mark["name"], mark["step"], mark["rank"]) for mark in marks
        ]


class TestFollow:
    def test_followers_that_are_killed(self, place) -> None:
        """A second follower takes over from one that was killed. It does only what is left, and does not run
        the command again that was running then. The job does not notice.
        """
        hang = 'echo $STEPPROF_STEP >> ran; [ "$STEPPROF_STEP" = 4 ] || exec sleep 600'
        place.configure(on_complete=["sh", "-c", hang], upload=f"file://{place.folder}/up")
        job = place.start("loop.py", "wait")
        _wait(lambda: (place.run / "step-000004/manifest/actor-rank-0.json").exists())
        first = place.start("-m", "stepprof", "follow", "--output-dir", "runs", "job")
        _wait(lambda: place.ran == ["2"])
        second = place.start(
            "-m", "stepprof", "follow", "--output-dir", "runs", "--config", "config.toml", "job"
        )
        time.sleep(1.0)
        assert read_step(place.run, 2)["completions"][0]["status"] == "running"
        first.kill()
        first.communicate()
        (place.folder / "go").touch()
        assert job.communicate(timeout=200)[0].splitlines()[-1] == "[]"
        assert job.returncode == 0
        second.communicate(timeout=200)
        assert second.returncode == 0
        assert place.ran == ["2", "4"]
        assert [read_step(place.run, step)["completions"][0]["status"] for step in (2, 4)] == [
            "lost",
            "complete",
        ]
        assert verify_run(place.folder / "up" / stored_name(place.run)).problems == []

    def test_a_follower_that_cannot_work_does_not_change_the_job(self, place) -> None:
        """The job runs and records as without a follower while one has no room on its disk, is killed or is stopped.
        A stopped one goes on afterwards.
        """
        place.configure(on_complete=NOTE)
        job = place.start("loop.py", "wait")
        _wait(lambda: (place.run / "step-000004/manifest/actor-rank-0.json").exists())
        follow = ("-m", "stepprof", "follow", "--output-dir", "runs", "job")
        full = place.start(*follow, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        assert full.stderr is not None
        assert any("File too large" in line for line in full.stderr)
        full.kill()
        full.communicate()
        stopped = place.start(*follow)
        _wait(lambda: place.ran)  # of both steps, if the job has not published its step yet
        stopped.send_signal(signal.SIGSTOP)
        (place.folder / "go").touch()
        assert job.communicate(timeout=200)[0].splitlines()[-1] == "[]"
        assert job.returncode == 0
        assert verify_run(place.run).problems == []
        stopped.send_signal(signal.SIGCONT)
        stopped.communicate(timeout=200)
        assert (stopped.returncode, [line.split()[0] for line in place.ran]) == (0, ["2", "4"])

    def test_what_it_cannot_begin(self, place) -> None:
        """Without a configuration or a run, one sentence says so."""
        place.configure(keep_steps=1)
        assert "no run is recorded there" in place.command("follow", "--output-dir", "runs")[2]
        del place.env["STEPPROF_CONFIG"]
        status, _, err = place.command("follow", "--output-dir", "runs")
        assert (status, err.count("\n")) == (2, 1)
        assert "pass --config FILE or set $STEPPROF_CONFIG" in err


def _wait(test, seconds=100) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.02)
