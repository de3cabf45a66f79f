"""Two jobs that record under one run id while both live."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.analysis.verify import verify_run
from stepprof.host.process_identity import writer_identity
from stepprof.run.conflicts import jobs_apart, rival_in, sentences
from stepprof.run.manifest import read_step
from stepprof.run.occurrences import number_fragments, split
from stepprof.run.run_id import job_key

JOB = """
import os, sys, stepprof
stepprof.init({"output_dir": sys.argv[1], "steps": "2-3", "backend": "null"})
for step in (2, 3):
    with stepprof.profile_step(step, role="actor"):
        print("in", flush=True)
        sys.stdin.readline()
stepprof.shutdown()
"""


class Job:
    """A process of one rank, which stays in each of its windows until it is released."""

    def __init__(self, output):
        environ = {**os.environ, "STEPPROF_RUN_ID": "shared", "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOB, str(output)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def enter(self):
        """Wait until the job is in a window."""
        assert self.process.stdout.readline() == "in\n"

    def go_on(self):
        """Make the job leave the window."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Wait until the job ends, and return what it logged."""
        _, log = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, log
        return log


@pytest.fixture
def job(tmp_path):
    """Return a function that starts a job with the run id `shared`."""
    made = []

    def job():
        made.append(Job(tmp_path / "runs"))
        return made[-1]

    yield job
    for each in made:
        each.process.kill()
        each.process.wait()
        for pipe in (each.process.stdin, each.process.stdout, each.process.stderr):
            pipe.close()


class TestTwoJobs:
    """Concurrent processes, each of them rank 0 of a different job."""

    def test_two_jobs_at_once_are_logged_as_a_conflict(self, job, tmp_path):
        """At least one job logs the conflict, and each at most once. `check` reports it, and the windows of
        each job are a separate occurrence.
        """
        one, other = job(), job()
        one.enter()
        other.enter()
        for each in (one, other):
            each.go_on()
            each.enter()
            each.go_on()
        logs = [one.end(), other.end()]
        assert sorted(log.count("two jobs write into one run") for log in logs) in ([0, 1], [1, 1])
        run = tmp_path / "runs" / "shared"
        parts = split(read_step(run, 2))
        assert sorted(part["windows"][0]["pid"] for part in parts) == sorted(
            [one.process.pid, other.process.pid]
        )
        assert [len(part["windows"]) for part in parts] == [1, 1]
        notes = [note.problem for note in verify_run(run).notes]
        assert any("two jobs that ran at once under one run id" in note for note in notes)

    def test_a_restarted_job_is_no_conflict(self, job, tmp_path):
        """A job that is started again under its run id logs no conflict, and its
        windows are a second occurrence.
        """
        logs = []
        for _ in range(2):
            again = job()
            for _ in (2, 3):
                again.enter()
                again.go_on()
            logs.append(again.end())
        assert "two jobs write into one run" not in "".join(logs)
        manifest = read_step(tmp_path / "runs" / "shared", 2)
        assert len(split(manifest)) == 2
        assert sentences(manifest["windows"]) == []


def entry(fragment, job, begin, end, process="a"):
    """Return the keys of a window that a reader needs."""
    return {
        "fragment": fragment, "rank": fragment.split(".")[0], "job": job, "start_unix_ns": begin, "end_unix_ns": end, "process": process, "visit": 1,
        "rival": None,
    }  # fmt: skip


class TestNumbers:
    """The number of the occurrence to which a fragment belongs."""

    def test_groups_of_one_job(self):
        """Ranks of several groups that recorded at one time are one occurrence."""
        entries = [entry("step-rank-0.json", "j", 10, 20, "a"), entry("step-rank-0.2.json", "j", 12, 22, "b")]
        assert set(number_fragments(entries).values()) == {1}

    def test_recordings_of_one_job_precede_those_of_the_other(self):
        """All recordings of one job precede those of the other. The job that began first comes first."""
        entries = [
            entry("step-rank-0.json", "j", 10, 20, "a"),
            entry("step-rank-0.2.json", "k", 12, 22, "b"),
            entry("step-rank-1.json", "k", 11, 22, "c"),
            entry("step-rank-1.2.json", "j", 13, 21, "d"),
        ]
        assert number_fragments(entries) == {
            "step-rank-0.json": 1, "step-rank-1.2.json": 1, "step-rank-0.2.json": 2, "step-rank-1.json": 2,
        }  # fmt: skip

    def test_a_restart_next_to_another_job(self):
        """Jobs j and l ran one after the other and are grouped. Job k overlaps both and is separate."""
        spans = [
            ((0, 10), entry("a", "j", 0, 10)),
            ((5, 30), entry("b", "k", 5, 30)),
            ((20, 40), entry("c", "l", 20, 40)),
        ]
        assert jobs_apart([spans]) == [{"j", "l"}, {"k"}]

    def test_a_window_without_times_is_in_the_last_occurrence(self):
        """A window that has no times gets the number of the last occurrence."""
        late = {**entry("step-rank-1.json", "k", None, None, "c")}
        assert number_fragments([entry("step-rank-0.json", "j", 1, 2), late])["step-rank-1.json"] == 1


class TestRival:
    """The process of another job that has written a fragment under the same name."""

    @pytest.fixture
    def fragment(self, tmp_path):
        def fragment(**content):
            path = tmp_path / "actor-rank-0.json"
            path.write_text(json.dumps(content))
            return path

        return fragment

    def test_a_living_process_of_another_job(self, fragment):
        """The process of the other job is returned. For the same job or an unknown one, None is returned."""
        parent = writer_identity(os.getppid())
        assert rival_in(fragment(writer=parent, job="other"), writer_identity(), "mine") == parent
        assert rival_in(fragment(writer=parent, job="mine"), writer_identity(), "mine") is None
        assert rival_in(fragment(writer=parent), writer_identity(), "mine") is None
        assert rival_in(fragment(writer=parent, job="other"), writer_identity(), None) is None
        assert rival_in(fragment(writer=writer_identity(), job="other"), writer_identity(), "mine") is None

    def test_an_ended_process_is_no_rival(self, fragment):
        """A writer whose process has ended is no rival: its job was started again."""
        gone = {**writer_identity(), "pid_start": 1}
        assert rival_in(fragment(writer=gone, job="other"), writer_identity(), "mine") is None

    def test_a_damaged_fragment_is_no_rival(self, tmp_path, fragment):
        """A missing fragment, or one with a damaged writer, does not prove that another job runs."""
        assert rival_in(tmp_path / "missing.json", writer_identity(), "mine") is None
        assert rival_in(fragment(writer=3, job="other"), writer_identity(), "mine") is None


class TestJobKey:
    """The key that all processes of one job share."""

    def test_launchers(self):
        """The key of a job is built from its launcher's variables, whatever its run id is."""
        elastic = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "n", "MASTER_PORT": "1", "STEPPROF_RUN_ID": "x"}
        assert job_key(elastic, 4) == "torchrun-a"
        ports = [job_key({"MASTER_ADDR": "n", "MASTER_PORT": port}, 4) for port in ("1", "1", "2")]
        assert ports[0] == ports[1] != ports[2]
        assert job_key({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, 2) not in (None, "localhost 1")
        assert (
            job_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}, 4)
            == "slurm-7.0"
        )

    def test_a_process_without_launcher_is_its_own_job(self):
        """A process without a launcher is a job of its own; ranks without a launcher belong to an unknown job."""
        assert str(os.getpid()) in job_key({"STEPPROF_RUN_ID": "x"}, 1)
        assert job_key({"STEPPROF_RUN_ID": "x"}, 4) is None
