"""A user who can write to a run directory cannot silently prevent `on_complete` and `keep_steps`."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest
from other_user import as_other_user, needs_root, plant, shared  # noqa: F401 - a fixture
from runs import make_run, record

import stepprof
from stepprof.analysis.verify import verify_run
from stepprof.host.process_identity import writer_identity


def notes(run):
    return [f"{note.where}: {note.problem}" if note.where else note.problem for note in verify_run(run).notes]


@pytest.fixture
def log(caplog):
    """Return a function that returns the events of the job's log."""
    return lambda: [record.getMessage() for record in caplog.records]


class TestCheck:
    def test_a_missing_command_counts_once_no_process_is_left(self, tmp_path):
        """A step for which the command never ran is a note once no process of the job is left. A
        step with a result is not.
        """
        run = make_run(tmp_path, config={"on_complete": ["make"], "on_complete_when": "step"})
        record(run)
        record(run, 3)
        assert notes(run.path) == ["on_complete is configured but never ran for step 2, 3"]
        head = {
            "schema_version": 1,
            "run_id": "r",
            "completions": [{"command": ["make"], "status": "complete"}],
        }
        for step in (2, 3):
            (run.path / f"step-{step:06d}/manifest/on-complete.json").write_text(
                json.dumps({**head, "step": step})
            )
        assert notes(run.path) == []

    def test_a_command_at_the_end_that_never_ran(self, tmp_path):
        """A command at the end of the run that never ran is a note."""
        run = make_run(tmp_path, config={"on_complete": ["make"], "on_complete_when": "run"})
        record(run)
        assert notes(run.path) == ["on_complete is configured but never ran"]
        (run.path / "after").mkdir()
        (run.path / "after" / "on-complete.json").write_text("{}")
        assert notes(run.path) == []

    def test_while_the_job_runs(self, tmp_path):
        """While the job runs, the command may still run, so there is no note."""
        run = make_run(tmp_path, config={"on_complete": ["make"], "keep_steps": 1})
        record(run)
        record(run, 3)
        status = run.status_path(0)
        status.parent.mkdir()
        now = time.time_ns()
        content = {"rank": 0, "writer": writer_identity(), "published_unix_ns": now, "started_unix_ns": now}
        status.write_text(json.dumps({**content, "ended": False}))
        assert notes(run.path) == []

    def test_an_unenforced_keep_steps_budget_is_reported(self, tmp_path):
        """The note has the number of steps whose artifacts exist."""
        run = make_run(tmp_path, config={"keep_steps": 1})
        for step in (2, 3, 4):
            record(run, step)
        (note,) = notes(run.path)
        assert note.startswith("keep_steps = 1, but the artifacts of 3 steps exist")

    @needs_root
    def test_files_of_another_user(self, shared):  # noqa: F811
        """A note lists the files of another user once for each folder."""
        run = make_run(shared)
        record(run)
        (run.path / "after").mkdir()
        (run.path / "after").chmod(0o777)
        for name in ("leader.json", "leader.2.json"):
            as_other_user('touch "$1"', run.path / "after" / name)
        assert notes(run.path) == [
            "after: leader.2.json and 1 other file belongs to user 65534, and the run to user 0: the job ignores it"
        ]


@needs_root
class TestJob:
    @pytest.fixture
    def attacked(self, shared, log):  # noqa: F811
        """Return a function that runs a job in a run directory that every user can write, with an
        attack before the step. It returns the run directory.
        """
        attacks = []

        def attacked(attack, **config):
            attacks.append(attack)
            command = [sys.executable, "-c", "open('ran', 'a').write('x')"]
            options = {"steps": "2", "backend": "null", "output_dir": str(shared), "on_complete": command}
            stepprof.init({**options, **config}, run_id="r")
            run = shared / "r"
            for folder in (run / "after", run / "step-000002" / "manifest", run / "status"):
                folder.mkdir(parents=True, exist_ok=True)
            as_other_user('test -w "$1" || true', run)
            attack(run)
            with stepprof.profile_step(2, role="actor"):
                pass
            stepprof.shutdown()
            return run

        return attacked

    def living(self, **more):
        """Return a state that claims to be from a living process: the parent of the job."""
        now = time.time_ns()
        writer = writer_identity(os.getppid())
        return json.dumps({"writer": writer, "over": False, "unix_ns": now, **more})

    def plant(self, path, content):
        path.parent.chmod(0o777)
        plant(path, content)

    def test_a_leader_that_never_ends(self, attacked, log, tmp_path, monkeypatch):
        """The job ignores the forged leader: the command runs, and a log event says so."""
        monkeypatch.chdir(tmp_path)
        attacked(lambda run: self.plant(run / "after" / "leader.json", self.living()))
        assert (tmp_path / "ran").read_text() == "x"
        assert any("leader.ignored" in line for line in log())

    def test_a_forged_result_does_not_prevent_the_command(self, attacked, log, tmp_path, monkeypatch):
        """The command runs although a file of another user says that it already ran."""
        monkeypatch.chdir(tmp_path)
        place = "step-000002/manifest/on-complete.json"
        run = attacked(lambda run: self.plant(run / place, json.dumps({"completions": []})))
        assert (tmp_path / "ran").read_text() == "x"
        assert any("on_complete.ignored" in line for line in log())
        assert (run / "step-000002/manifest/on-complete.2.json").is_file()

    def test_a_rank_that_never_finishes_the_step(self, attacked, log, tmp_path, monkeypatch):
        """Another user writes the status and window of a rank 9. The job ignores them and runs the
        command without waiting.
        """
        monkeypatch.chdir(tmp_path)
        now = time.time_ns()
        status = {"rank": 9, "published_unix_ns": now, "started_unix_ns": now, "ended": False, "step": 1}
        window = {"role": "actor", "rank": 9, "status": "lost", "error": None, "artifacts": []}

        def attack(run):
            self.plant(run / "status" / "rank-9.json", self.living(**status))
            self.plant(run / "step-000002/manifest/actor-rank-9.json", self.living(windows=[window]))

        attacked(attack)
        assert (tmp_path / "ran").read_text() == "x"
        assert any("status.ignored" in line for line in log())
