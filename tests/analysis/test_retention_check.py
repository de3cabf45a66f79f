"""A user who can write to a run directory cannot silently prevent `on_complete` and `keep_steps`."""

from __future__ import annotations

import json
import os
import time

import pytest
from other_user import as_other_user, needs_root, plant, shared  # noqa: F401 - a fixture
from runs import make_run, record

from stepprof.analysis.post_step_notes import after_notes
from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.config.config import Config
from stepprof.follow.follower import Follower
from stepprof.host.process_identity import writer_identity
from stepprof.run.manifest import read_step


def notes(run):
    return [f"{note.where}: {note.problem}" if note.where else note.problem for note in verify_run(run).notes]


@pytest.fixture
def log(caplog):
    """Return a function that returns the events of the log."""
    return lambda: [record.getMessage() for record in caplog.records]


class TestCheck:
    def test_a_missing_command_counts_once_no_process_is_left(self, tmp_path):
        """A step for which the command never ran is a note once no process of the job is left. A
        step with a result is not.
        """
        run = make_run(tmp_path, config={"on_complete": ["make"], "on_complete_when": "step"})
        record(run)
        record(run, 3)
        assert notes(run.path) == [
            "on_complete is configured but never ran for step 2, 3: `stepprof follow` runs it"
        ]
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
        assert notes(run.path) == ["on_complete is configured but never ran: `stepprof follow` runs it"]
        (run.path / "after").mkdir()
        (run.path / "after" / "on-complete.json").write_text("{}")
        assert notes(run.path) == []

    def test_a_step_that_was_never_uploaded(self, tmp_path):
        """A step that was never uploaded, although it is configured, is a note."""
        run = make_run(tmp_path, config={"upload": "s3://b"})
        claim = record(run)
        record(run, 3)
        (claim.fragment.parent / "uploads.json").write_text(
            json.dumps(
                {
                    "schema_version": 1,
                    "run_id": "r",
                    "step": 2,
                    "uploads": [{"path": "x", "status": "uploaded"}],
                }
            )
        )
        assert notes(run.path) == [
            "upload is configured but step 3 was never uploaded: `stepprof follow` does it"
        ]

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
        for name in ("follow.lock", "follow.2.lock"):
            as_other_user('touch "$1"', run.path / "after" / name)
        assert notes(run.path) == [
            "after: follow.2.lock and 1 other file belongs to user 65534, and the run to user 0: the job ignores it"
        ]

    def test_notes_of_nearly_nothing(self, tmp_path):
        """Empty entries still result in one note each, and `show` can print the step."""
        run = make_run(tmp_path)
        claim = record(run)
        for key in ("uploads", "completions", "pruned"):
            content = {"schema_version": 1, "run_id": "r", "writer": {}, "step": 2, key: [{}, 3]}
            (claim.fragment.parent / f"{key}.json").write_text(json.dumps(content))
        notes = after_notes(read_step(run.path, 2))
        assert len(notes) == 3
        assert main(["show", str(run.path), "--step", "2"]) == 0


@needs_root
class TestAttack:
    @pytest.fixture
    def attacked(self, shared, log, tmp_path):  # noqa: F811
        """Return a function that follows a run in which every user can write, after an attack. It returns
        the run directory.
        """

        def attacked(attack):
            run = make_run(shared)
            record(run)
            for folder in ("after", "step-000002/manifest", "status"):
                (run.path / folder).mkdir(parents=True, exist_ok=True)
            attack(run.path)
            command = ["touch", str(tmp_path / "ran")]
            made = Follower(run.path, Config(on_complete=command, upload=f"file://{tmp_path}/up"))
            made.look(0.0)
            made.close()
            return run.path

        return attacked

    def living(self, **more):
        """Return a state that claims to be from a living process: the parent of this one."""
        now = time.time_ns()
        return json.dumps({"writer": writer_identity(os.getppid()), "unix_ns": now, **more})

    def plant(self, path, content):
        path.parent.chmod(0o777)
        plant(path, content)

    @pytest.mark.parametrize(
        "name",
        ["after/follow.lock", "step-000002/manifest/uploads.json", "step-000002/manifest/on-complete.json"],
    )
    def test_a_file_in_our_place(self, attacked, log, tmp_path, name):
        """A lock, a record or a result that another user has planted is not believed: the work that needs the name
        is not done, and the log says whose file it is.
        """
        attacked(lambda run: self.plant(run / name, "{}"))
        assert not (tmp_path / "ran").exists()
        assert any("belongs to another user" in line and name in line for line in log())

    def test_a_rank_that_never_finishes_the_step(self, attacked, log, tmp_path):
        """Another user writes the status and window of a rank 9, and spans. They are ignored: the command
        runs without waiting, and nothing of it is uploaded.
        """
        now = time.time_ns()
        status = {"rank": 9, "published_unix_ns": now, "started_unix_ns": now, "ended": False, "step": 1}
        window = {"role": "actor", "rank": 9, "status": "lost", "error": None, "artifacts": []}

        def attack(run):
            (run / "spans").mkdir()
            self.plant(run / "status" / "rank-9.json", self.living(**status))
            self.plant(run / "step-000002/manifest/actor-rank-9.json", self.living(windows=[window]))
            self.plant(run / "spans" / "rank-9.000001.jsonl", "{}")

        attacked(attack)
        assert (tmp_path / "ran").exists()
        (copy,) = (tmp_path / "up").iterdir()
        assert (copy / "run.json").exists()
        assert not list(copy.rglob("*rank-9*"))
