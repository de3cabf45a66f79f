"""Whether run directories with the same id belong to one run or to two."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from runs import ended_writer, make_run, record, write_spans

from stepprof.analysis.timeline.find import find
from stepprof.cli.main import main
from stepprof.errors import ConfigError
from stepprof.host.clock import Anchor
from stepprof.run.same_run import evidence_of, is_part, parts_of_one_run, why_apart

SECOND = 1_000_000_000
BEGIN = 1_700_000_000 * SECOND
JOB = """
import stepprof, sys
stepprof.init({"steps": "2", "output_dir": sys.argv[1], "backend": "null"}, run_id=sys.argv[2] or None)
for step in range(4):
    with stepprof.profile_step(step, role="actor"), stepprof.region("work"):
        pass
"""


def job(output_dir, run_id="demo-1", **environ):
    """Record a run with a real job."""
    environ = {**os.environ, **environ}
    subprocess.run([sys.executable, "-c", JOB, str(output_dir), run_id], check=True, env=environ, timeout=200)
    (run,) = (path for path in output_dir.iterdir() if path.name[0] != ".")
    return run


def node(folder, *, host, boot=None, rank=0, pid=7, at=0.0, seconds=1.5, created=None, role="actor", **run):
    """Make the directory of a run as one machine has it: one rank with one window."""
    writer = {**ended_writer(), "host": host, "boot_id": boot or host, "pid": pid}
    begin = BEGIN + int(at * SECOND)
    times = {"start_unix_ns": begin, "end_unix_ns": begin + int(seconds * SECOND)}
    made = make_run(folder, created_unix_ns=BEGIN if created is None else created, writer=writer, **run)
    record(made, rank=rank, role=role, writer=writer, host=host, pid=pid, **times)
    return made.path


def reason(*paths):
    return why_apart(*map(evidence_of, paths))


class TestTwoRuns:
    def test_jobs_that_follow_each_other_are_two_runs(self, tmp_path):
        """Two jobs with one id ran one after the other by the clock of their machine, and are two runs."""
        runs = [job(tmp_path / name) for name in "ab"]
        assert "by the clock of one machine" in reason(*runs)
        assert parts_of_one_run(runs) == [[runs[0]], [runs[1]]]

    def test_processes_that_named_themselves(self, tmp_path):
        """Two processes that generated their run id themselves are two runs, even in the same second."""
        runs = [job(tmp_path / name, run_id="") for name in "ab"]
        assert "process that was alone" in reason(*runs)

    def test_the_same_rank_at_the_same_time(self, tmp_path):
        """If two machines record rank 0 of one role at the same time, they are two runs."""
        runs = [node(tmp_path / host, host=host, at=number) for number, host in enumerate("ab")]
        assert "actor rank 0 is process 7 on a in one, and process 7 on b" in reason(*runs)

    def test_the_same_rank_on_another_day(self, tmp_path):
        """If one rank is two processes and the two machines never recorded at the
        same time, they are two runs.
        """
        late = 86_400
        runs = [
            node(tmp_path / "a", host="a"),
            node(tmp_path / "b", host="b", at=late, created=BEGIN + late * SECOND),
        ]
        assert "actor rank 0" in reason(*runs)

    def test_spans_tell_how_long_a_process_lived(self, tmp_path):
        """Rank 0 recorded at different times on two hosts. The spans show that both processes lived
        throughout, so they are two runs.
        """
        runs = []
        for number, host in enumerate("ab"):
            path = node(tmp_path / host, host=host, at=10 * number)
            header = {"kind": "spans", "rank": 0, "host": host, "pid": 7, "anchor": {"unix_ns": BEGIN}}
            last = {"name": "r", "kind": "region", "start": BEGIN, "dur": 20 * SECOND, "step": 2}
            (path / "spans").mkdir()
            (path / "spans" / "rank-0.000001.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(last)}\n")
            runs.append(path)
        assert "actor rank 0" in reason(*runs)


class TestOneRun:
    def test_a_copy_of_a_directory_is_the_same_run(self, tmp_path):
        """A directory and its copy are one run."""
        run = job(tmp_path / "a")
        copy = tmp_path / "b" / run.name
        shutil.copytree(run, copy)
        assert reason(run, copy) is None

    def test_nodes_without_a_shared_disk(self, tmp_path):
        """Different ranks on different machines are one run, even if their clocks are hours apart."""
        hours = 7_200
        runs = [
            node(tmp_path / "a", host="a"),
            node(tmp_path / "b", host="b", rank=1, at=hours, created=BEGIN + hours * SECOND),
        ]
        assert reason(*runs) is None

    def test_containers_of_one_machine(self, tmp_path):
        """Two containers have the same machine and process id, but different ranks. Their processes began
        at the same time, so they are one run.
        """
        runs = [
            node(tmp_path / "a", host="a", boot="x", role="rollout"),
            node(tmp_path / "b", host="b", boot="x", rank=1, at=1.0),
        ]
        assert reason(*runs) is None

    def test_a_restart_that_moved_the_ranks(self, tmp_path):
        """After a restart the ranks swap their machines. Both machines took part from the
        beginning, so they are one run.
        """
        runs = [node(tmp_path / "a", host="a"), node(tmp_path / "b", host="b", rank=1)]
        (moved,) = (make_run(tmp_path / "b"),)
        writer = {**ended_writer(), "host": "b", "boot_id": "b", "pid": 8}
        later = BEGIN + 100 * SECOND
        record(moved, rank=0, writer=writer, start_unix_ns=later, end_unix_ns=later + SECOND)
        other = make_run(tmp_path / "a")
        writer = {**writer, "host": "a", "boot_id": "a"}
        record(other, rank=1, writer=writer, start_unix_ns=later, end_unix_ns=later + SECOND)
        assert reason(*runs) is None

    def test_groups_of_ranks_under_ray(self, tmp_path):
        """A job of Ray may have several groups of processes, each with a rank 0, and is one run."""
        runs = [node(tmp_path / host, host=host, run_id_from="ray") for host in "ab"]
        assert reason(*runs) is None

    def test_directories_without_evidence_are_one_run(self, tmp_path):
        """Directories with the same id and without times or processes are one run."""
        runs = [make_run(tmp_path / name).path for name in "ab"]
        write_spans(make_run(tmp_path / "a"), 0)
        (tmp_path / "b" / "r" / "step-000001" / "manifest").mkdir(parents=True)
        (tmp_path / "b" / "r" / "step-000001" / "manifest" / "actor-rank-0.json").write_text("{")
        assert reason(*runs) is None

    def test_a_part_that_connects_two(self, tmp_path):
        """A node left before another one joined. A third node ran with both, and
        shows that all three are one run.
        """
        first = node(tmp_path / "a", host="a", boot="x")
        late = node(tmp_path / "b", host="b", boot="x", rank=1, at=100, created=BEGIN + 100 * SECOND)
        both = node(tmp_path / "c", host="c", rank=2, seconds=200)
        assert reason(first, late) is not None
        assert parts_of_one_run([first, late, both]) == [[first, late, both]]


class TestWallClocks:
    """Two ranks on one machine with different wall clocks. By these clocks, the second rank began
    after the first one had ended.
    """

    def nodes(self, folder, *anchors):
        runs = []
        for rank, anchor in enumerate(anchors):
            run = node(folder / str(rank), host=str(rank), boot="x", rank=rank, at=37 * rank, created=BEGIN)
            created = json.loads((run / "run.json").read_text())
            created["created_unix_ns"] += 37 * SECOND * rank
            (run / "run.json").write_text(json.dumps(created))
            for file in run.glob("step-*/manifest/*.json"):
                content = json.loads(file.read_text())
                file.write_text(json.dumps({**content, "anchor": anchor.to_dict()}))
            runs.append(run)
        return runs

    @pytest.mark.parametrize("shifted", [0, 37 * SECOND])
    def test_different_clocks_prove_nothing(self, tmp_path, shifted):
        """Different wall clocks are no proof of two runs, whether or not the
        kernel's clock can compare them.
        """
        ahead = Anchor(BEGIN + 37 * SECOND, 5 + shifted, 1, 7)
        assert reason(*self.nodes(tmp_path, Anchor(BEGIN, 5, 1, 7), ahead)) is None

    def test_on_one_clock_jobs_ran_one_after_the_other(self, tmp_path):
        """If both ranks have the same clock, they ran one after the other and are two runs."""
        anchors = Anchor(BEGIN, 5, 1, 7), Anchor(BEGIN + 37 * SECOND, 5 + 37 * SECOND, 1, 7 + 37 * SECOND)
        assert "by the clock of one machine" in reason(*self.nodes(tmp_path, *anchors))


class TestIsPart:
    def test_one_directory_seen_from_two_nodes_is_one_run(self, tmp_path):
        """One directory that two nodes see is one run."""
        run = job(tmp_path / "a")
        assert is_part(run, evidence_of(run))

    def test_an_older_job_under_the_same_path(self, tmp_path):
        """A directory of another run with the same id is no part of this run."""
        ours, theirs = job(tmp_path / "a"), job(tmp_path / "b")
        assert not is_part(theirs, evidence_of(ours))


class TestCommands:
    @pytest.fixture
    def two(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        return [os.path.relpath(job(tmp_path / name)) for name in "ab"]

    @pytest.mark.parametrize("step", ["", ":2"])
    def test_report_compares_them(self, two, capsys, step):
        """`report` compares the two runs, and names each by its path."""
        assert main(["report", *(f"{path}{step}" for path in two), "--json"]) == 0
        compared = json.loads(capsys.readouterr().out)
        assert compared["a"].split() == [two[0], "step", "2"]
        assert compared["b"].split() == [two[1], "step", "2"]

    def test_merge_refuses_with_the_reason(self, two, capsys):
        """`merge` exits with status 2, and the error says why the directories are two runs."""
        assert main(["merge", *two]) == 2
        said = capsys.readouterr().err
        assert "are both called demo-1 and are two runs: by the clock of one machine" in said

    def test_three_are_too_many(self, two, tmp_path, capsys):
        """`report` refuses three runs with the same id."""
        third = job(tmp_path / "c")
        assert main(["report", *two, str(third)]) == 2
        assert "3 runs given" in capsys.readouterr().err

    def test_find_refuses_them(self, two, tmp_path):
        """`find` raises a ConfigError if the directories belong to two runs."""
        with pytest.raises(ConfigError, match="two runs"):
            find(two, output_dir=tmp_path)
