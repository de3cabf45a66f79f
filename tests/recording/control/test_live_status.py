"""Trigger, watch and kill a running job of several processes. None of this changes the result of the job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import instructions_of

import stepprof
from stepprof.cli.main import main
from stepprof.errors import ConfigError
from stepprof.run.reachable_steps import reachable_step
from stepprof.run.requests import Request, place_request, withdraw_request
from stepprof.run.status import read_statuses
from stepprof.run.trigger import ask, wait_for_answers

LOOP = """
import logging, pathlib, sys, time
import stepprof

logging.basicConfig(level="INFO", stream=sys.stdout)
rank, seconds, first, stride = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
role = sys.argv[5]
stepprof.init({"backend": "null", "output_dir": "runs"}, rank=rank, world_size=4, run_id="job")
step = first
while not pathlib.Path("stop").exists() and step < 10_000:
    with stepprof.profile_step(step):
        with stepprof.profile_step(step, role=role):
            time.sleep(seconds)
    step += stride
stepprof.shutdown()
print("result", step > first, flush=True)
"""


class Job:
    """Processes of one run, which continue until they are stopped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "job"
        self.ranks: dict[int, subprocess.Popen[str]] = {}
        (folder / "loop.py").write_text(textwrap.dedent(LOOP))

    def start(
        self, rank: int, seconds: float = 0.02, first: int = 1, stride: int = 1, role: str = "actor"
    ) -> None:
        arguments = (rank, seconds, first, stride, role)
        self.ranks[rank] = subprocess.Popen(
            [sys.executable, "-W", "error", "loop.py", *map(str, arguments)],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_until(self, test: Callable[[dict[Any, dict[str, Any]]], bool], seconds: float = 20) -> None:
        """Wait until the processes' status files fulfil a condition."""
        deadline = time.monotonic() + seconds
        while not test(self.statuses()):
            assert time.monotonic() < deadline, self.statuses()
            time.sleep(0.05)

    def wait_for(self, *ranks: int) -> None:
        """Wait until these ranks have published how long a step takes."""
        self.wait_until(
            lambda found: all(rank in found and found[rank]["step_seconds"] is not None for rank in ranks)
        )

    def statuses(self) -> dict[Any, dict[str, Any]]:
        return {status["rank"]: status for status in read_statuses(self.run)}

    def outcomes(self, name: str) -> dict[Any, str]:
        return {
            rank: status["requests"][name]["outcome"]
            for rank, status in self.statuses().items()
            if name in status["requests"]
        }

    def end(self) -> dict[int, str]:
        """Let every process end, and return what each printed. Check that each
        has its result and exit status.
        """
        (self.folder / "stop").touch()
        printed = {rank: process.communicate(timeout=200)[0] for rank, process in self.ranks.items()}
        for rank, process in self.ranks.items():
            if process.returncode != -signal.SIGKILL:
                assert "result True" in printed[rank], printed[rank]
                assert process.returncode == 0, printed[rank]
        return printed

    def recorded(self, step: int) -> set[int]:
        manifests = (self.run / f"step-{step:06d}" / "manifest").glob("*.json")
        windows = [window for path in manifests for window in json.loads(path.read_text())["windows"]]
        return {window["rank"] for window in windows if window["status"] in ("complete", "joined")}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.ranks.values():
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class TestTrigger:
    def test_the_next_step_on_ranks_that_are_at_different_ones(self, job: Job) -> None:
        """Three ranks are at different steps. `trigger` chooses a later step that all
        reach, and each rank records it.
        """
        for rank in range(3):
            job.start(rank, 0.02 + 0.01 * rank)
        job.wait_for(0, 1, 2)
        request = stepprof.trigger(job.run, ranks="all")
        assert request.step > max(status["step"] for status in job.statuses().values())
        answers = wait_for_answers(job.run, request.name, 5)
        assert set(answers) <= {"accepted", "reached"}
        job.wait_until(lambda _: set(job.outcomes(request.name).values()) == {"reached"})
        printed = job.end()
        assert job.recorded(request.step) == {0, 1, 2}
        assert "to=armed target=rank-0 seconds=" in printed[0]
        assert job.recorded(request.step - 1) == job.recorded(request.step + 1) == set()

    def test_the_next_step_of_a_loop_that_counts_by_tens(self, job: Job) -> None:
        """If the loop counts by tens, `trigger` chooses a later step that the loop reaches on both ranks."""
        for rank in (0, 1):
            job.start(rank, 0.05, first=10, stride=10)
        job.wait_for(0, 1)
        request = stepprof.trigger(job.run, ranks="all")
        job.wait_until(lambda _: job.outcomes(request.name) == {0: "reached", 1: "reached"})
        job.end()
        assert request.step % 10 == 0
        assert job.recorded(request.step) == {0, 1}

    def test_a_request_for_a_role_of_other_ranks_is_not_missed(
        self, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A request for `rollout` does not concern a rank with another role, and `show`
        does not report it as missed.
        """
        for rank, role in ((0, "actor"), (1, "rollout")):
            job.start(rank, role=role)
        job.wait_for(0, 1)
        request = stepprof.trigger(job.run, role="rollout", ranks="all")
        job.wait_until(lambda _: job.outcomes(request.name) == {0: "not here", 1: "reached"})
        job.end()
        assert job.recorded(request.step) == {1}
        capsys.readouterr()
        assert main(["show", str(job.run), "--step", str(request.step)]) == 0
        assert "missed" not in capsys.readouterr().out

    def test_a_resumed_job_has_not_missed_earlier_steps(
        self, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A job that resumes at a later step does not report as missed what the killed job recorded."""
        job.start(0)
        job.wait_for(0)
        request = stepprof.trigger(job.run)
        job.wait_until(lambda _: job.outcomes(request.name) == {0: "reached"})
        job.ranks[0].kill()
        job.ranks[0].communicate()
        job.start(0, first=request.step + 100)
        job.wait_until(lambda _: job.outcomes(request.name) == {0: "not here"})
        printed = job.end()[0]
        assert "request.missed" not in printed
        assert f"this process began at step {request.step + 100}" in printed
        capsys.readouterr()
        assert main(["show", str(job.run), "--step", str(request.step)]) == 0
        assert "missed" not in capsys.readouterr().out

    def test_a_killed_job_that_resumes_on_another_host(
        self, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Status files of killed processes on a host that is gone are replaced when the job
        resumes. They block no request.
        """
        job.start(3, 0.02, first=5000)
        job.wait_for(3)
        job.ranks[3].kill()
        job.ranks[3].wait()
        path = job.run / "status" / "rank-3.json"
        content = json.loads(path.read_text())
        content["writer"]["host"] = "gone"
        path.write_text(
            json.dumps({**content, "published_unix_ns": content["published_unix_ns"] - 20 * 10**9})
        )
        long_ago = time.time() - 20
        os.utime(path, (long_ago, long_ago))
        assert main(["status", str(job.run)]) == 1
        assert "1 stale" in capsys.readouterr().out
        job.start(0, 0.02, first=4000)
        job.wait_for(0)
        assert main(["status", str(job.run)]) == 0
        assert "1 live, 1 replaced" in capsys.readouterr().out
        assert stepprof.trigger(job.run).step < 4500
        assert stepprof.trigger(job.run, step=4900).step == 4900
        job.end()

    def test_withdrawn_and_past_requests_have_their_own_outcomes(self, job: Job) -> None:
        """Each request has its own outcome. For steps that had passed, it says where the rank was, and
        the rank records the others.
        """
        job.start(0, 0.05)
        job.wait_for(0)
        begun = job.statuses()[0]["step"]
        first, second = (stepprof.trigger(job.run, role=role) for role in (None, "actor"))
        withdrawn = stepprof.trigger(job.run, step=begun + 5000)
        past = Request.make(begun)
        half = Request.make(begun, count=begun + 200)
        for late in (past, half):
            place_request(job.run, late)
        job.wait_until(lambda _: job.outcomes(withdrawn.name) == {0: "accepted"})
        assert withdraw_request(job.run, withdrawn.name)
        job.wait_until(lambda _: job.outcomes(withdrawn.name) == {0: "withdrawn"})
        job.wait_until(lambda _: job.outcomes(first.name) == job.outcomes(second.name) == {0: "reached"})
        assert job.outcomes(past.name) == {0: "missed"}
        seen = job.statuses()[0]["requests"]
        assert seen[past.name]["reason"].startswith("this rank was at step")
        assert seen[half.name]["missed"].startswith(f"{begun}-")
        printed = job.end()[0]
        assert job.recorded(first.step) == {0}
        assert job.recorded(begun) == set()
        assert f"event=request.missed request={past.name}" in printed

    def test_show_lists_the_ranks_that_missed_a_request(
        self, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`show` lists the ranks that had passed the requested step, and the other rank records it."""
        job.start(0, 0.02, first=1000)
        job.start(1, 0.1)
        job.wait_for(0, 1)
        step = job.statuses()[1]["step"] + 60
        assert step < job.statuses()[0]["step"]
        late = Request.make(step, ranks="all")
        place_request(job.run, late)
        job.wait_until(lambda _: job.outcomes(late.name) == {0: "missed", 1: "reached"})
        job.end()
        assert job.recorded(step) == {1}
        capsys.readouterr()
        assert main(["show", str(job.run), "--step", str(step)]) == 0
        assert f"request {late.name}: missed by rank 0: this rank was at step" in capsys.readouterr().out

    def test_a_late_rank_and_a_dead_rank(self, job: Job) -> None:
        """A rank that starts later finds the request. A killed rank is reported as
        crashed, and delays no other rank.
        """
        for rank in (0, 1):
            job.start(rank, 0.05)
        job.wait_for(0, 1)
        request = stepprof.trigger(job.run, step=job.statuses()[0]["step"] + 120, ranks="all")
        wait_for_answers(job.run, request.name, 5)
        job.ranks[1].send_signal(signal.SIGKILL)
        job.start(2, 0.02, first=request.step - 20)
        job.wait_until(
            lambda _: [job.outcomes(request.name).get(rank) for rank in (0, 2)] == ["reached", "reached"]
        )
        conditions = {rank: status["condition"] for rank, status in job.statuses().items()}
        assert conditions == {0: "live", 1: "crashed", 2: "live"}
        assert job.outcomes(request.name)[1] == "accepted"
        job.end()
        assert job.recorded(request.step) == {0, 2}

    def test_foreign_damaged_and_hostile_requests_are_refused(self, job: Job) -> None:
        """The job refuses requests that are damaged, hostile or of another user, and gives the reason. It
        then carries out a valid request.
        """
        job.start(0, 0.02)
        job.wait_for(0)
        folder = job.run / "requests"
        folder.mkdir(mode=0o700)
        (folder / "half.json").write_text('{"name": "half", "st')
        (folder / "up.json").write_text('{"name": "up", "step": 1, "changes": {"output_dir": "/etc"}}')
        (folder / "notes.txt").write_text("not one")
        os.mkfifo(folder / "pipe.json")
        expected = {"half", "up", "pipe"}
        if os.getuid() == 0:
            foreign = place_request(job.run, Request.make(900_000))
            os.chown(foreign, 12345, -1)
            expected.add(foreign.stem)
        job.wait_until(lambda found: set(found[0]["requests"]) == expected)
        job.wait_until(lambda _: all(job.outcomes(name) == {0: "refused"} for name in expected))
        asked = stepprof.trigger(job.run)
        job.wait_until(lambda _: job.outcomes(asked.name) == {0: "reached"})
        printed = job.end()[0]
        assert "unknown key" in printed
        assert os.getuid() != 0 or "made by user 12345" in printed


class TestSecurity:
    def test_nothing_listens(self, run_script: Callable[..., Any]) -> None:
        """A session with live control, status, watch, uploads and a command opens no socket."""
        ran = run_script(
            """
            import os, pathlib, time
            import stepprof
            config = {"backend": "null", "output_dir": "runs", "steps": "2", "watch": {"enabled": True}, "keep_steps": 1,
                      "on_complete": ["true"], "upload": f"file://{pathlib.Path.cwd()}/up"}
            session = stepprof.init(config)
            for step in range(1, 5):
                with stepprof.profile_step(step):
                    time.sleep(0.4)
            open_here = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
            lines = [line.split() for kind in ("tcp", "tcp6") for line in pathlib.Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]]
            listening = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in open_here]
            stepprof.shutdown()
            print(listening, [name for name in open_here if name.startswith("socket")])
            """
        ).check()
        assert ran.stdout.split("\n")[0] == "[] []"


class TestRunDirectoryGoes:
    def test_a_run_directory_that_becomes_unwritable_and_writable_again(self, job: Job) -> None:
        """If the folders for status and requests are replaced by files, the job logs
        one line for each and goes on.
        """
        job.start(0, 0.02)
        job.wait_for(0)
        for name in ("status", "requests"):
            if (job.run / name).exists():
                (job.run / name).rename(job.folder / name)
            (job.run / name).write_text("in the way")
        time.sleep(2.5)
        printed = job.end()[0]
        assert printed.count("event=status.not_written") == 1
        assert printed.count("event=request.unreadable") == 1


class TestStatus:
    def test_the_status_of_an_ended_run(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        """`status` shows an ended run as ended, and `trigger` refuses it."""
        job.start(0)
        job.wait_for(0)
        job.end()
        assert main(["status", str(job.run)]) == 0
        assert "1 ended" in capsys.readouterr().out
        with pytest.raises(ConfigError, match="the run has ended"):
            stepprof.trigger(job.run)
        assert main(["status", str(job.run), "--watch", "0.1", "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert content["conditions"] == {"ended": 1}

    def test_the_commands_on_a_job_that_runs(self, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
        """`trigger` makes, withdraws and prints requests to a running job, as text and
        as JSON; `status` lists them.
        """
        job.start(0)
        job.wait_for(0)
        assert main(["trigger", str(job.run), "--count", "2", "--set", "max_seconds=9", "--wait", "5"]) == 0
        printed = capsys.readouterr().out
        name = printed.split()[1]
        assert "max_seconds = 9" in printed
        assert "by 1 (rank 0)" in printed
        assert main(["trigger", str(job.run), "--withdraw", name]) == 0
        assert main(["trigger", str(job.run), "--withdraw", name]) == 0
        assert "was withdrawn before" in capsys.readouterr().out
        assert main(["trigger", str(job.run), "--json", "--backend", "null", "--set", "export=inline"]) == 0
        answered = json.loads(capsys.readouterr().out)
        assert answered["request"]["changes"] == {"export": "inline", "backend": ["null"]}
        assert main(["status", str(job.run)]) == 0
        assert f"request {name}" in capsys.readouterr().out
        job.end()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--step", "nxt"], 'did you mean "next"'),
            (["--step", "0"], "is at step"),
            (["--step", "9" * 5000], "too large"),
            (["--set", f"torch={'[' * 100_000}"], "torch"),
            (["--ranks", "9"], "did you mean 3?"),
            (["--role", "actr"], 'did you mean "actor"'),
            (["--role", "actor", "--ranks", "9"], "did you mean 3?"),
            (["--backend", "nul"], 'did you mean "null"'),
            (["--set", "max_seconds"], "expected KEY=VALUE"),
            (["--set", "torch=1", "--set", "torch.with_stack=true"], "torch is already set to a value"),
            (["--ranks", "0", "--set", "ranks=all"], "given twice"),
            (["--set", "step=7"], 'set = "step=7": is no key of a role; use --step'),
            (["--set", "path=7"], "path = 7: unknown key"),
            (["--set", "cls=7"], "cls = 7: unknown key"),
            (["--set", "bakend=null"], 'bakend = "null": unknown key; did you mean "backend"?'),
            (["--set", "max_seconds=null"], "max_seconds"),
            (["--withdraw", "x"], "no such request"),
        ],
    )
    def test_impossible_requests_are_refused_before_they_are_written(
        self,
        written: Path,
        tmp_path: Path,
        arguments: list[str],
        message: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """`trigger` checks a request against the run's roles, ranks and steps, and makes
        no folder for an invalid one.
        """
        run = half_written_run(written, tmp_path)
        assert main(["trigger", str(run), *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not (run / "requests").exists()

    @pytest.mark.parametrize(
        ("status", "message"),
        [
            ({"roles": []}, "no window of this role has begun, nor of any other one; leave role out"),
            ({"roles": [], "role": "actor"}, 'did you mean "actor"'),
            ({"roles": [], "engines": {"actor/0": {"roles": "actor,eval"}}}, "(one of: actor, eval)"),
        ],
    )
    def test_a_role_that_no_window_has_is_refused(
        self,
        written: Path,
        tmp_path: Path,
        status: dict[str, Any],
        message: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A job may have no roles, only an open window of one, or only engines that have one."""
        run = half_written_run(written, tmp_path, **{"role": None, **status})
        assert main(["trigger", str(run), "--step", "20", "--role", "actr"]) == 2
        assert message in capsys.readouterr().err
        if "actor" in message:
            assert ask(run, 20, count=1, role="actor", ranks="all").role == "actor"

    def test_a_value_null_is_a_string(
        self, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`null` is the name of a backend: as JSON it has no value, and the request was placed without it."""
        run = half_written_run(written, tmp_path)
        main(["trigger", str(run), "--step", "20", "--set", "backend=null", "--wait", "0", "--json"])
        assert json.loads(capsys.readouterr().out)["request"]["changes"] == {"backend": "null"}

    @pytest.mark.parametrize(
        ("roles", "ranks", "is_placed"),
        [(["rollout"], "1", False), (["rollout"], "0-1", True), ([], "1", True), (["actor"], "1", True)],
    )
    def test_a_role_that_the_requested_ranks_do_not_have(
        self, written: Path, tmp_path: Path, roles: list[str], ranks: str, is_placed: bool
    ) -> None:
        """Rank 0 has windows of the role, and rank 1 of another one: a request to rank 1 alone would record nothing. If no role of
        it is known, a driver may open its windows."""
        run = half_written_run(written, tmp_path, role=None, roles=["actor"])
        other = json.loads((run / "status" / "rank-0.json").read_text())
        other.update(rank=1, roles=roles)
        (run / "status" / "rank-1.json").write_text(json.dumps(other))
        if is_placed:
            assert ask(run, 20, count=1, role="actor", ranks=ranks).role == "actor"
        else:
            with pytest.raises(
                ConfigError, match="no window of role actor has begun there; it has in rank 0"
            ):
                ask(run, 20, count=1, role="actor", ranks=ranks)

    def test_any_role_is_accepted_before_the_first_step(self, written: Path, tmp_path: Path) -> None:
        """The roles of a job that has just begun are not known yet."""
        run = half_written_run(written, tmp_path, role=None, roles=[], step=None)
        assert ask(run, 20, count=1, role="rollout", ranks="all").role == "rollout"

    @pytest.mark.parametrize(("command", "option"), [("trigger", "--wait"), ("status", "--watch")])
    @pytest.mark.parametrize("value", ["nan", "-1", "inf", "soon"])
    def test_invalid_seconds_are_refused(
        self, command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The command exits with an error that names the option."""
        with pytest.raises(SystemExit):
            main([command, "run", f"{option}={value}"])
        assert f"argument {option}" in capsys.readouterr().err

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
    def test_another_users_request_is_refused_before_it_is_written(
        self, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`trigger` refuses a user who does not own the job, and makes no folder,
        because the job could not use it.
        """
        run = half_written_run(written, tmp_path)
        os.chown(run / "status" / "rank-0.json", 12345, -1)
        assert main(["trigger", str(run)]) == 2
        assert (
            "only user 12345, the owner of the job, may make requests; you are user 0"
            in capsys.readouterr().err
        )
        assert sorted(path.name for path in run.iterdir()) == ["run.json", "spans", "status"]

    def test_damaged_stale_and_hostile_files(
        self, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`status` prints damaged, live and stale status files, and no control characters from them."""
        run = half_written_run(written, tmp_path)
        folder = run / "status"
        good = json.loads((folder / "rank-0.json").read_text())
        (folder / "rank-1.json").write_text("{")
        (folder / "rank-2.json").write_text("[" * 100_000)
        (folder / "rank-3.json").write_text(
            json.dumps({**good, "rank": 3, "published_unix_ns": time.time_ns() - 10**12})
        )
        os.utime(folder / "rank-3.json", (0, 0))
        (folder / "rank-4.json").write_text(
            json.dumps(
                {**good, "rank": "a\x1b[31m", "engines": {"r/0": {"state": 1, "health": "ok"}, "x": 3}}
            )
        )
        (folder / "rank-5.json").write_text(json.dumps({key: {"a": [1e999]} for key in good}))
        os.mkfifo(folder / "rank-6.json")
        assert main(["status", str(run)]) == 1
        printed = capsys.readouterr().out
        assert "4 damaged, 2 live, 1 stale" in printed
        assert "\x1b" not in printed

    def test_a_run_without_status_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """In a run without status files, `status` says so. `trigger` refuses `next`, and finds
        no answer for a numbered step.
        """
        (tmp_path / "job").mkdir()
        (tmp_path / "job" / "run.json").write_text("{}")
        assert main(["status", str(tmp_path / "job")]) == 0
        assert "no process has reported its state" in capsys.readouterr().out
        assert main(["trigger", str(tmp_path / "job")]) == 2
        assert main(["trigger", str(tmp_path / "job"), "--step", "7", "--wait", "0"]) == 1
        assert "no process of the run has answered" in capsys.readouterr().out


class TestPython:
    def test_without_a_session_the_run_must_be_named(self) -> None:
        """Without a session, `trigger` raises an error that asks for the run."""
        with pytest.raises(ConfigError, match="name the run"):
            stepprof.trigger()

    def test_a_request_from_the_job_itself(self, tmp_path: Path) -> None:
        """A job calls `trigger` for a step of its own, and its status reports the request as reached."""
        session = stepprof.init({"backend": "null", "output_dir": str(tmp_path)})
        try:
            with stepprof.profile_step(3):
                request = stepprof.trigger(step=5)
            deadline = time.monotonic() + 10
            while not session.selector.requests and time.monotonic() < deadline:
                time.sleep(0.05)
            for step in (4, 5):
                with stepprof.profile_step(step):
                    pass
        finally:
            stepprof.shutdown()
        assert request.step == 5
        assert session.path is not None
        (status,) = read_statuses(session.path)
        assert status["requests"][request.name]["outcome"] == "reached"

    def test_a_step_that_has_begun_while_an_earlier_one_runs(self, tmp_path: Path) -> None:
        """The rollout of step 6 has begun while step 5 is still open. A request for step 6 is refused, or
        missed if it was made elsewhere.
        """
        session = stepprof.init({"backend": "null", "output_dir": str(tmp_path)})
        path = session.path
        assert path is not None
        try:
            ahead = stepprof.profile_step(6, role="rollout")
            ahead.start()
            with stepprof.profile_step(5, role="actor"):
                _until(lambda: [status["step"] for status in read_statuses(path)] == [6])
                with pytest.raises(ConfigError, match="is at step 6 already"):
                    stepprof.trigger(step=6)
                ahead.stop()
                place_request(path, late := Request.make(6))
                _until(lambda: late.name in session.live.control.outcomes())
            seen = session.live.control.outcomes()[late.name]
        finally:
            stepprof.shutdown()
        assert (seen["outcome"], seen["reason"]) == (
            "missed",
            "this rank was at step 6 when it saw the request",
        )

    def test_a_missing_run_folder_is_refused(self, tmp_path: Path) -> None:
        """If the folder of the run is missing, `ask` raises an error."""
        for name in ("x" * 5000, "a\0b"):
            with pytest.raises(ConfigError, match="no such folder"):
                stepprof.trigger(name, step=5)
        with pytest.raises(ConfigError, match="no such folder"):
            ask(tmp_path / "nowhere", 3, count=1, role=None)


RANK = {
    "step": 10,
    "stride": 1,
    "step_since_unix_ns": 0,
    "pace_seconds": 1.0,
    "published_unix_ns": 10**12,
    "age_seconds": 0.0,
}


class TestReachableStep:
    def test_no_rank_has_begun_the_step_by_then(self) -> None:
        """The chosen step is later than any step that the most advanced rank can
        have begun since its status.
        """
        behind = {**RANK, "step": 2}
        assert reachable_step([RANK, behind]) == 15
        assert reachable_step([{**RANK, "age_seconds": 10.0}, behind]) == 27

    def test_a_long_step_that_just_began_is_not_skipped(self) -> None:
        """A step of 60 s that had just begun at the last status is taken as still
        running, so the next one is chosen.
        """
        begun = {**RANK, "pace_seconds": 60.0, "step_since_unix_ns": RANK["published_unix_ns"]}
        assert reachable_step([begun]) == 11
        assert reachable_step([{**begun, "age_seconds": 30.0}]) == 11

    def test_a_hanging_rank_is_not_extrapolated(self) -> None:
        """If the status is an hour old, the rank hangs or its clock is wrong. The chosen step
        stays close to the last one.
        """
        assert reachable_step([{**RANK, "age_seconds": 3600.0}]) == 33

    def test_a_clock_that_is_wrong(self) -> None:
        """The time that the current step has taken comes from the rank's own clock, so
        a wrong clock has no effect.
        """
        wrong = {**RANK, "published_unix_ns": 10**9, "step_since_unix_ns": 0, "pace_seconds": 10.0}
        assert reachable_step([wrong]) == 11

    def test_the_next_possible_step_is_chosen(self) -> None:
        """If steps are numbered by tens, a multiple of ten is chosen."""
        assert reachable_step([{**RANK, "stride": 10}]) == 60
        assert reachable_step([{**RANK, "stride": 10, "pace_seconds": None}]) == 30

    def test_ranks_that_have_not_begun(self) -> None:
        """Without a step, step 1 is chosen. If the duration of a step is unknown, the step
        after the next one is chosen.
        """
        assert reachable_step([{**RANK, "step": None}]) == 1
        assert reachable_step([{**RANK, "pace_seconds": None}]) == 12
        assert reachable_step([]) == 1


class TestReadStatuses:
    def write_status(
        self, run: Path, rank: int, *, started: float = 100.0, ago: float = 0.0, **more: Any
    ) -> Path:
        """Write the status of a process on another host that was published so many
        seconds ago; return its path.
        """
        now = time.time()
        content = {
            "rank": rank,
            "writer": {"host": "elsewhere", "pid": 1},
            "started_unix_ns": int((now - started) * 1e9),
            "published_unix_ns": int((now - ago) * 1e9),
            "ended": False,
            **more,
        }
        path = run / "status" / f"rank-{rank}{more.get('number', '')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
        os.utime(path, (now - ago, now - ago))
        return path

    def conditions(self, run: Path) -> list[str]:
        return [status["condition"] for status in read_statuses(run)]

    def test_a_clock_that_is_an_hour_wrong_does_not_make_a_status_stale(self, tmp_path: Path) -> None:
        """The age of a status comes from the file system, so a wrong clock makes
        it neither stale nor future.
        """
        for rank, hours in ((0, -1), (1, 1)):
            path = self.write_status(tmp_path, rank, published_unix_ns=time.time_ns() + hours * 3600 * 10**9)
            os.utime(path, (time.time() - 4, time.time() - 4))
        assert self.conditions(tmp_path) == ["live", "live"]
        assert [round(status["age_seconds"]) for status in read_statuses(tmp_path)] == [4, 4]

    def test_statuses_of_a_restarted_job_are_replaced(self, tmp_path: Path) -> None:
        """A stale status is replaced if another process has its rank, or if the job
        restarted later with fewer ranks.
        """
        self.write_status(tmp_path, 0, started=500.0, ago=60.0)
        self.write_status(tmp_path, 1, started=500.0, ago=60.0)
        assert self.conditions(tmp_path) == ["stale", "stale"]
        self.write_status(tmp_path, 0, started=50.0, number=".2")
        assert self.conditions(tmp_path) == ["live", "replaced", "replaced"]

    def test_each_further_rank_of_such_a_job_costs_the_same(self, tmp_path: Path) -> None:
        """Reading the statuses costs the same for each further rank, however
        many old ones were left behind.
        """
        costs = []
        for first, after in ((0, 20), (20, 40), (40, 80)):
            for rank in range(first, after):
                self.write_status(tmp_path, rank, started=500.0, ago=60.0)
                self.write_status(tmp_path, rank, started=50.0, number=".2")
            costs.append(instructions_of(read_statuses, tmp_path))
        assert costs[2] - costs[1] < 2.06 * (costs[1] - costs[0])

    def test_a_late_rank_replaces_no_other(self, tmp_path: Path) -> None:
        """If another rank starts later, the status of a hanging rank stays stale."""
        self.write_status(tmp_path, 0, started=500.0)
        self.write_status(tmp_path, 1, started=500.0, ago=60.0)
        self.write_status(tmp_path, 2, started=50.0)
        assert self.conditions(tmp_path) == ["live", "stale", "live"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run as a process in the middle of step 7 leaves it, with its last status."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("STEPPROF")]:
            patch.delenv(name)
        config = {"backend": "null", "output_dir": str(folder)}
        session = stepprof.init(config, rank=0, world_size=4, run_id="job")
    for step in range(1, 8):
        with stepprof.profile_step(step, role="actor"):
            pass
    session.background.round()
    time.sleep(1)
    session.background.round()
    run = session.path
    assert run is not None
    status = (run / "status" / "rank-0.json").read_text()
    stepprof.shutdown()
    (run / "status" / "rank-0.json").write_text(status)
    return run


def half_written_run(written: Path, folder: Path, **changes: object) -> Path:
    """Return a copy of the run whose status, with these changes, was published just now by this process."""
    run = Path(shutil.copytree(written, folder / "job"))
    path = run / "status" / "rank-0.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps({**status, **changes, "published_unix_ns": time.time_ns()}))
    return run


def on_a_terminal(
    *arguments: str, lines: int = 40, once: bytes = b"", then: Callable[[], object] = lambda: None
) -> bytes:
    """Return the output of a command on a terminal of 150 columns. Call `then` as soon
    as the output contains `once`.
    """
    ours, theirs = os.openpty()
    shown = subprocess.Popen(
        [sys.executable, "-m", "stepprof", *arguments],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": str(lines)},
    )
    os.close(theirs)
    printed, done = b"", False
    while True:
        try:
            printed += os.read(ours, 65536)
        except OSError:  # the other side of the terminal has ended
            break
        if not done and once in printed:
            done = True
            then()
    os.close(ours)
    assert shown.wait(20) == 0
    return printed


class TestTerminal:
    @pytest.mark.parametrize("arguments", [[], ["--watch", "0.1"]])
    def test_colours_do_not_change_the_words(
        self, written: Path, tmp_path: Path, arguments: list[str]
    ) -> None:
        """On a terminal, `status` prints the same words in color. `--watch` ends with the run."""
        run = half_written_run(written, tmp_path)
        path = run / "status" / "rank-0.json"
        engines = {"rollout/0": {"kind": "vllm", "name": "x", "host": "n-1", "state": "idle", "health": "ok"}}
        content = {**json.loads(path.read_text()), "engines": engines, "last_error": "export: a disk is full"}
        path.write_text(json.dumps(content))

        def end() -> None:
            path.write_text(json.dumps({**content, "ended": True}))

        printed = on_a_terminal(
            "status", str(run), *arguments, once=b"a disk is full", then=end if arguments else lambda: None
        )
        assert b"\x1b[" in printed
        for word in (b"rollout/0", b"a disk is full", b"live"):
            assert word in printed

    def test_troubled_ranks_come_first_until_the_end(self, written: Path, tmp_path: Path) -> None:
        """While `--watch` runs, the rank with an error comes first and the rest is cut off. At
        the end all ranks are printed.
        """
        run = half_written_run(written, tmp_path)
        path = run / "status" / "rank-0.json"
        content = json.loads(path.read_text())
        for rank in range(1, 60):
            error = "export: a disk is full" if rank == 50 else None
            path.with_name(f"rank-{rank}.json").write_text(
                json.dumps({**content, "rank": rank, "last_error": error})
            )

        def end() -> None:
            for each in path.parent.iterdir():
                each.write_text(json.dumps({**json.loads(each.read_text()), "ended": True}))

        printed = on_a_terminal(
            "status", str(run), "--all", "--watch", "0.1", lines=12, once=b"without --watch", then=end
        )
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).replace("\r", "")
        watched, _, ended = plain.partition("60 ended")
        ranks = [line.split()[0] for line in watched.splitlines() if " idle " in line]
        assert ranks[:7] == ["50", "0", "1", "2", "3", "4", "5"]
        assert "53 more lines" in watched
        assert "rank 50: export: a disk is full" in watched
        assert re.search(r"^59 ", ended, re.MULTILINE)

    def test_as_text_until_the_run_ends(self, job: Job) -> None:
        """Into a pipe, `status --watch` prints one table after the other, and ends with the run."""
        job.start(0)
        job.wait_for(0)
        shown = subprocess.Popen(
            [sys.executable, "-m", "stepprof", "status", str(job.run), "--watch", "0.2"],
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(1.5)
        job.end()
        printed = shown.communicate(timeout=200)[0]
        assert printed.count("run job") > 1
        assert "1 ended" in printed.rsplit("run job", 1)[1]


def _until(test: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.05)
