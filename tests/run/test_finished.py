"""Names of runs that an earlier job, or another user, has used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from other_user import as_other_user, needs_root

from stepprof.run.finished import is_finished, usable_name
from stepprof.run.runs import list_runs, read_run

JOB = """
import os, sys, time
import stepprof
session = stepprof.init({"steps": "1", "backend": "null", "ranks": "all", "output_dir": "."})
with stepprof.profile_step(1):
    pass
end = sys.argv[1]
if end == "raise":
    raise ValueError("planted")
if end == "kill":
    os.kill(os.getpid(), 9)
if end == "again":
    session.shutdown()
    second = stepprof.init({"steps": "1", "backend": "null", "ranks": "all", "output_dir": "."})
    assert second.run_id == session.run_id, second
if end == "finally":
    try:
        raise ValueError("planted")
    finally:
        stepprof.shutdown()
"""


def job(folder, *ranks, end="return", world=2, **environ):
    """Run the ranks of a job one after the other, as a shell that starts them with one MASTER_PORT."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": str(world)}
    for rank in ranks:
        subprocess.run(
            [sys.executable, "-c", JOB, end],
            cwd=folder,
            env={**os.environ, **shared, **environ, "RANK": str(rank)},
            stderr=subprocess.DEVNULL,
            timeout=200,
            check=False,
        )


class TestOneShell:
    def test_the_next_job(self, tmp_path):
        """The ranks of the next job with the same address and port find one new run."""
        job(tmp_path, 0, 1)
        assert len(list_runs(tmp_path)) == 1
        job(tmp_path, 1, 0)
        first, second = list_runs(tmp_path)
        assert [is_finished(run, 0) for run in (first, second)] == [True, True]

    def test_with_more_ranks(self, tmp_path):
        """All ranks of a larger job find the new run, also those that the first job did not have."""
        job(tmp_path, 0, 1)
        job(tmp_path, 2, 0, 1, world=3)
        assert len(list_runs(tmp_path)) == 2

    @pytest.mark.parametrize("end", ["raise", "kill", "finally"])
    def test_a_job_that_failed(self, tmp_path, end):
        """A job that is started again after it failed goes on with its run."""
        job(tmp_path, 0, end=end)
        job(tmp_path, 0)
        assert len(list_runs(tmp_path)) == 1

    def test_a_second_session_of_a_process(self, tmp_path):
        """A process that ends its session and begins another one stays in its run."""
        job(tmp_path, 0, end="again")
        assert len(list_runs(tmp_path)) == 1

    def test_ranks_that_torchrun_started_again(self, tmp_path):
        """Ranks that torchrun has started again join their run, however the ones before ended."""
        job(tmp_path, 0, 1, TORCHELASTIC_RUN_ID="none")
        job(tmp_path, 0, 1, TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="1")
        assert len(list_runs(tmp_path)) == 1

    def test_a_constant_id_of_torchrun(self, tmp_path):
        """Two jobs with one `--rdzv-id` are two runs; a rank that begins late joins the first."""
        job(tmp_path, 0, TORCHELASTIC_RUN_ID="7")
        job(tmp_path, 1, TORCHELASTIC_RUN_ID="7")
        assert [run.name for run in list_runs(tmp_path)] == ["torchrun-7"]
        job(tmp_path, 0, 1, TORCHELASTIC_RUN_ID="7")
        assert {run.name for run in list_runs(tmp_path)} == {"torchrun-7", "torchrun-7.2"}


class TestIsFinished:
    @pytest.mark.parametrize("content", ["{", "[]", '{"ended": 1}', '{"ended": true, "failed": true}'])
    def test_a_status_that_does_not_show_an_end(self, tmp_path, content):
        """A damaged status, or that of a process that failed, does not show the end of a run."""
        (tmp_path / "r" / "status").mkdir(parents=True)
        (tmp_path / "r" / "status" / "rank-0.json").write_text(content)
        assert not is_finished(tmp_path / "r", 0)
        assert usable_name(tmp_path, "r", 0) == "r"

    def test_ranks_that_have_not_begun(self, tmp_path):
        """A rank joins a run whose other ranks were faster, if not all of its world have ended."""
        (tmp_path / "r" / "status").mkdir(parents=True)
        (tmp_path / "r" / "status" / "rank-0.json").write_text('{"ended": true, "rank": 0, "world_size": 2}')
        assert not is_finished(tmp_path / "r", 1)
        assert is_finished(tmp_path / "r", 0)
        assert not is_finished(tmp_path / "r", "driver")
        assert usable_name(tmp_path, "r", 0) == "r.2"


TAKEN = """
import sys
import stepprof
session = stepprof.init({"steps": "1", "backend": "null", "output_dir": sys.argv[1]})
with stepprof.profile_step(1):
    pass
stepprof.shutdown()
print(session.run_id)
"""


@needs_root
class TestAnotherUser:
    @pytest.mark.parametrize(
        "attack",
        [
            'mkdir "$1/mine"',
            'mkdir -m 777 "$1/mine"',
            'ln -s "$2" "$1/mine"',
            'ln -s /none "$1/mine"',
            ': > "$1/mine"',
            'mkfifo "$1/mine"',
            'mkdir "$1/mine"; ln -s "$2" "$1/mine.2"',
        ],
    )
    def test_a_name_that_is_taken(self, shared, tmp_path, run_script, attack):
        """A run is never recorded into a folder, or behind a link, of another user: it gets the next name,
        and one log line says why.
        """
        target = tmp_path / "target"
        target.mkdir()
        as_other_user(attack, shared, target)
        ran = run_script(TAKEN, str(shared), env={"STEPPROF_RUN_ID": "mine"}).check()
        name = ran.stdout.strip()
        assert name == ("mine.3" if "mine.2" in attack else "mine.2")
        assert read_run(shared / name)["run_id"] == name
        assert ran.stderr.count("another run folder is used instead of") == int(name[-1]) - 1
        assert list(target.iterdir()) == []

    def test_a_link_of_this_user(self, shared, tmp_path, run_script):
        """A link of the job's own user to a folder of that user is followed."""
        (tmp_path / "target").mkdir()
        (shared / "mine").symlink_to(tmp_path / "target")
        ran = run_script(TAKEN, str(shared), env={"STEPPROF_RUN_ID": "mine"}).check()
        assert ran.stdout == "mine\n"
        assert read_run(tmp_path / "target")["run_id"] == "mine"
