"""The work of a follower for one run, look by look."""

from __future__ import annotations

import json
import sys

import fsspec
import pytest
import runs
from fsspec.registry import known_implementations
from structlog.testing import capture_logs

from stepprof.analysis.verify import verify_run
from stepprof.config.config import Config
from stepprof.config.options.watch import WatchOptions
from stepprof.errors import ConfigError
from stepprof.follow import follower
from stepprof.follow.captures import Captures
from stepprof.follow.follower import RESTART_SECONDS, Follower, stored_name
from stepprof.follow.settings import settings
from stepprof.follow.watch import Watch
from stepprof.host.process_identity import writer_identity
from stepprof.run.layout import UPLOADS
from stepprof.run.manifest import read_step

TRACE = "actor/rank-0.trace.json.gz"


@pytest.fixture
def run(tmp_path):
    return runs.make_run(tmp_path)


@pytest.fixture
def memory():
    """Return fsspec's file system in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def refused(memory, mocker):
    """Let the store refuse the trace of step 2. Return the list of the files that it was asked to take."""
    asked, real = [], type(memory).put_file

    def put(self, local, remote, **options):
        asked.append("/".join(remote.strip("/").split("/")[2:]))
        if asked[-1] == f"step-000002/{TRACE}":
            raise OSError("too large")
        return real(self, local, remote, **options)

    mocker.patch.object(type(memory), "put_file", put)
    mocker.patch("stepprof.follow.upload.PAUSE_SECONDS", 0.001)
    return asked


def look(run, *, last=False, **config):
    """Look once, as a follower that is started and ends. The last look awaits no restart."""
    made = Follower(run.path, Config(**config))
    made.look(0.0 if last else RESTART_SECONDS)
    made.close()
    return made


class TestSettings:
    def test_they_come_from_the_file_alone(self, tmp_path, run) -> None:
        """The settings come from --config, else from $STEPPROF_CONFIG, and never from the run."""
        (run.path / "run.json").write_text(json.dumps({"config": {"on_complete": ["true"]}}))
        one, other = tmp_path / "one.toml", tmp_path / "other.toml"
        one.write_text("keep_steps = 1")
        other.write_text("keep_steps = 2")
        environ = {"STEPPROF_CONFIG": str(other), "STEPPROF": "0"}
        assert (settings(one, environ).keep_steps, settings(None, environ).keep_steps) == (1, 2)
        with pytest.raises(
            ConfigError, match=r"no configuration: pass --config FILE or set \$STEPPROF_CONFIG"
        ):
            settings(None, {})

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("steps = 2", "nothing to do: set on_complete, upload, keep_steps, keep_bytes"),
            ('on_complete = "./no-such-command"', "there is no command ./no-such-command here"),
            ('upload = "s3://b"', "upload: s3://b needs no_such"),
            ('uplaod = "s3://b"', 'did you mean "upload"'),
        ],
    )
    def test_what_cannot_be_done_is_refused(self, tmp_path, monkeypatch, text, problem) -> None:
        """A file that asks for nothing, or for what is not there, is refused before the first look."""
        monkeypatch.setitem(known_implementations, "s3", {"class": "no_such.Class"})
        (tmp_path / "c.toml").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            settings(tmp_path / "c.toml", {})


class TestSequence:
    def test_upload_then_command_then_retention(self, run, tmp_path, memory) -> None:
        """Of a complete step the artifacts are uploaded, then the command runs, then old artifacts are
        deleted. At the end the results are uploaded too, and the copy is a run.
        """
        command, ran = runs.note(
            tmp_path, "$STEPPROF_STEP $(ls $STEPPROF_STEP_DIR/actor) $STEPPROF_UPLOADED_TO"
        )
        for step in (2, 3):
            runs.record(run, step)
        runs.write_spans(run, 0)
        runs.tell_status(run, step=9)
        config = {"upload": f"file://{tmp_path}/up", "on_complete": command, "keep_steps": 1}
        look(run, **config)
        url = f"file://{tmp_path}/up/{stored_name(run.path)}"
        assert ran() == [f"{step} rank-0.trace.json.gz {url}" for step in (2, 3)]
        assert [(run.path / f"step-00000{step}" / TRACE).exists() for step in (2, 3)] == [False, True]
        copy = tmp_path / "up" / stored_name(run.path)
        assert not (copy / "run.json").exists()
        runs.tell_status(run, ended=True)
        made = look(run, **config)
        assert len(ran()) == 2
        assert not made.has_failed
        for path in (run.path, copy):
            result = verify_run(path)
            assert result.problems == []
            assert [each["status"] for each in read_step(path, 2)["uploads"]] == ["uploaded"]
            assert read_step(path, 2)["completions"][0]["status"] == "complete"
            assert len(read_step(path, 2)["pruned"]) == 1
        assert verify_run(copy).artifacts == 2
        assert {"run.json", "spans", "after"} <= {path.name for path in copy.iterdir()}

    def test_a_rank_that_stays_in_a_step_is_awaited_ten_minutes(self, run, tmp_path, monkeypatch) -> None:
        """If a rank does not leave the step, the command of the step runs after ten minutes."""
        runs.record(run)
        runs.tell_status(run, rank=1, step=2)
        command, ran = runs.note(tmp_path)
        made = Follower(run.path, Config(on_complete=command))
        made.look()
        assert ran() == []
        monkeypatch.setattr(follower, "LATE_SECONDS", 0.0)
        made.look()
        assert ran() == ["2 complete"]
        made.close()

    def test_a_rank_that_died_before_its_export(self, run, tmp_path) -> None:
        """A step whose rank died is complete once the rank is gone, with the status `lost`."""
        runs.record(run, status="lost", error="x", data=b"")
        runs.record(run, rank=1, writer=writer_identity())
        runs.tell_status(run, rank=0, step=2, writer=runs.ended_writer())
        runs.tell_status(run, rank=1, step=3)
        command, ran = runs.note(tmp_path)
        look(run, on_complete=command)
        assert ran() == ["2 lost"]

    def test_an_unfinished_upload_ends_with_the_run(self, run, tmp_path, memory, monkeypatch) -> None:
        """An upload that failed is tried once more at the end, with what came late. A capture that was
        deleted is not missed.
        """
        runs.record(run, 2)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up"))
        real = type(memory).put_file
        refuse = lambda *_, **__: (_ for _ in ()).throw(PermissionError("no"))  # noqa: E731
        monkeypatch.setattr(type(memory), "put_file", refuse)
        monkeypatch.setattr("stepprof.follow.upload.PAUSE_SECONDS", 0.001)
        assert made.look() is False
        assert made.has_failed
        monkeypatch.setattr(type(memory), "put_file", real)
        runs.record(run, 2, rank=1)
        runs.tell_status(run, ended=True)
        assert made.look() is True
        assert not made.has_failed
        assert {each["path"] for each in read_step(run.path, 2)["uploads"]} == {
            TRACE,
            "actor/rank-1.trace.json.gz",
        }
        made.close()

    def test_what_comes_after_a_step_was_complete(self, run, tmp_path) -> None:
        """What is added to a complete step is uploaded and counted too, and retention goes by time: the latest step
        is the one that was recorded last, which has a lower number after a restart from a checkpoint.
        """
        runs.record(run, 100, start_unix_ns=5)
        runs.tell_status(run, step=200)
        made = Follower(run.path, Config(upload=f"file://{tmp_path}/up", keep_steps=1))
        made.look()
        runs.record(run, 100, rank=1, start_unix_ns=6)
        runs.record(run, 60, start_unix_ns=9)
        made.look()
        made.close()
        copy = tmp_path / "up" / stored_name(run.path)
        names = [path.relative_to(copy).as_posix() for path in sorted(copy.rglob("*.gz"))]
        assert names == [
            f"step-000060/{TRACE}",
            f"step-000100/{TRACE}",
            "step-000100/actor/rank-1.trace.json.gz",
        ]
        assert [path.parent.parent.name for path in run.path.rglob("*.gz")] == ["step-000060"]

    def test_what_was_not_uploaded_is_kept(self, run, memory, mocker) -> None:
        """A step that was not uploaded is tried again, and `keep_steps` does not delete it meanwhile."""
        mocker.patch("stepprof.follow.upload.RETRY_SECONDS", -1.0)
        mocker.patch("stepprof.follow.upload.PAUSE_SECONDS", 0.001)
        runs.record(run, 2)
        runs.record(run, 3)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up", keep_steps=1))
        down = mocker.patch.object(type(memory), "put_file", side_effect=OSError("down"))
        made.look()
        assert len(list(run.path.rglob("*.gz"))) == 2
        assert made.has_failed
        mocker.stop(down)
        made.look()
        made.look()
        assert len(list(run.path.rglob("*.gz"))) == 1
        assert len([path for path in memory.find("/up") if path.endswith(".gz")]) == 2
        assert not made.has_failed
        made.close()

    def test_a_file_that_the_store_refuses_does_not_stop_the_rest(self, run, memory, refused) -> None:
        """Of an ended run everything else is uploaded, also the manifest of the step with the refused file."""
        runs.record(run, 2)
        runs.record(run, 3)
        runs.tell_status(run, ended=True)
        assert look(run, upload="memory://up").has_failed
        found = {path.partition("/r-")[2].partition("/")[2] for path in memory.find("/up")}
        assert {"run.json", f"step-000003/{TRACE}", "step-000002/manifest/actor-rank-0.json"} <= found
        assert f"step-000002/{TRACE}" not in found

    def test_a_step_that_failed_comes_last(self, run, refused, mocker) -> None:
        """While the job runs, a step whose upload has failed is tried again after the others."""
        runs.record(run, 2)
        runs.record(run, 3)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up"))
        made.look()
        assert {name for name in refused if name.endswith("gz")} == {f"step-000002/{TRACE}"}
        mocker.patch("stepprof.follow.upload.RETRY_SECONDS", -1.0)
        refused.clear()
        made.look()
        made.close()
        assert [name for name in dict.fromkeys(refused) if name.endswith("gz")] == [
            f"step-000003/{TRACE}",
            f"step-000002/{TRACE}",
        ]

    def test_what_cannot_be_read_is_not_tried_at_each_look(self, run, refused, mocker) -> None:
        """A folder with one file that cannot be uploaded is not sent again at each look, but after a pause, or
        when the manifest lists another size.
        """
        folder = run.path / "step-000003/actor/parts"
        runs.record(run, 3, data=b"", artifacts=[{"path": "actor/parts", "bytes": 4}])
        folder.mkdir(parents=True)
        (folder / "a").write_text("good")
        with (folder / "b").open("wb") as file:
            file.truncate(1 << 30)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up"))
        for tries, size in ((1, 4), (1, 4), (2, 5)):
            runs.record(run, 3, rank=size, data=b"", artifacts=[{"path": "actor/parts", "bytes": size}])
            made.look()
            assert refused.count("step-000003/actor/parts/a") == tries
        mocker.patch("stepprof.follow.upload.RETRY_SECONDS", -1.0)
        made.look()
        assert refused.count("step-000003/actor/parts/a") == 3
        assert made.has_failed
        made.close()

    def test_on_a_full_disk_an_artifact_is_uploaded_once(self, run, refused, mocker) -> None:
        """While the record cannot be written, the follower remembers what it has uploaded."""
        full = mocker.patch("stepprof.follow.uploaded.write_atomically", side_effect=OSError(28, "No space"))
        runs.record(run, 3)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up"))
        for _ in range(2):
            made.look()
        mocker.stop(full)
        made.look()
        made.close()
        assert refused.count(f"step-000003/{TRACE}") == 1
        assert [each["status"] for each in read_step(run.path, 3)["uploads"]] == ["uploaded"]
        assert not made.has_failed

    def test_two_runs_of_one_name_have_two_places(self, tmp_path, memory) -> None:
        """Two nodes without a shared disk, or two jobs, may give their runs one name: neither takes the other's
        files for its own.
        """
        for node in ("a", "b"):
            run = runs.make_run(tmp_path / node)
            description = json.loads((run.path / "run.json").read_text())
            (run.path / "run.json").write_text(json.dumps({**description, "writer": {"host": node}}))
            runs.record(run, data=node.encode())
            assert not look(run, last=True, upload="memory://up").has_failed
        traces = [path for path in memory.find("/up") if path.endswith(TRACE)]
        assert sorted(map(memory.cat, traces)) == [b"a", b"b"]

    def test_a_full_disk_does_not_prevent_the_deletion(self, run, memory, mocker) -> None:
        """If the record of an upload cannot be written, old steps are deleted nevertheless."""
        mocker.patch("stepprof.follow.uploaded.write_atomically", side_effect=OSError(28, "No space"))
        runs.record(run, 2)
        runs.record(run, 3)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://up", keep_bytes=1))
        made.look()
        mocker.stopall()
        assert len(list(run.path.rglob("*.gz"))) == 1
        made.close()

    def test_what_is_deleted_before_its_upload_is_a_failure(self, run, refused) -> None:
        """An artifact that `keep_bytes` deletes before its upload is logged, and the exit status tells it."""
        runs.record(run, 2)
        runs.record(run, 3)
        runs.tell_status(run, ended=True)
        with capture_logs() as logs:
            made = look(run, upload="memory://up", keep_bytes=1)
        assert [path.parent.parent.name for path in run.path.rglob("*.gz")] == ["step-000003"]
        lines = {line["event"]: line for line in logs}
        assert lines["retention.pruned"]["not_uploaded"] == 1
        assert (lines["retention.not_uploaded"]["step"], lines["retention.not_uploaded"]["count"]) == (2, 1)
        assert made.has_failed

    def test_an_export_of_a_dead_process_is_awaited(self, run, tmp_path) -> None:
        """A run is not over while a forked export, which has outlived its process, still writes."""
        claim = runs.record(run, status="lost", error="x", pending=True, data=b"")
        content = json.loads(claim.fragment.read_text())
        runs.tell_status(run, step=2, writer=runs.ended_writer())
        claim.fragment.write_text(json.dumps({**content, "exporter": writer_identity()}))
        command, ran = runs.note(tmp_path)
        made = Follower(run.path, Config(on_complete=command))
        assert made.look(0.0) is False
        runs.record(run)  # the export has finished the manifest
        claim.fragment.unlink()
        assert made.look(0.0) is True
        assert ran() == ["2 complete"]
        made.close()

    def test_a_pruned_capture_that_others_joined(self, run) -> None:
        """If a capture that another window joined was deleted, `check` reports no problem. Its bytes still
        count for the watch's budget.
        """
        runs.record(run, step=2)
        capture = {"step": 2, "stem": "actor/rank-0"}
        runs.record(run, step=3, role="actor", status="joined", data=b"", capture=capture)
        runs.record(run, step=4)
        look(run, last=True, keep_steps=1, upload="memory://none")
        assert verify_run(run.path).problems == []
        assert [len(read_step(run.path, step)["pruned"]) for step in (2, 3, 4)] == [1, 0, 0]
        captures = Captures(run.path, Config(), WatchOptions())
        size = captures._bytes_of({"capture_step": 2, "capture_rank": 0})
        assert size == read_step(run.path, 2)["pruned"][0]["bytes"] > 0

    def test_a_file_of_the_run_says_no_address(self, run, memory) -> None:
        """A run id that leads out of the store's folder is not used: a run is data."""
        (run.path / "run.json").write_text('{"run_id": "../../elsewhere"}')
        runs.record(run)
        look(run, last=True, upload="memory://up/here")
        assert {path.split("/")[1:4][-1] for path in memory.find("/")} == {stored_name(run.path)}
        assert stored_name(run.path).startswith("r-")


class TestCommand:
    def test_its_result_and_its_environment(self, run, tmp_path) -> None:
        """The command has the facts of the step. Its result is in the manifest, and it is not run again."""
        names = "STEPPROF STEPPROF_RUN STEPPROF_RUN_ID STEPPROF_STEP STEPPROF_STEP_DIR STEPPROF_STATUS"
        command, ran = runs.note(tmp_path, " ".join(f"${name}" for name in names.split()))
        runs.record(run)
        for _ in range(2):
            look(run, last=True, on_complete=command)
        step = run.path / "step-000002"
        assert ran() == [f"0 {run.path} r 2 {step} complete"]
        (entry,) = read_step(run.path, 2)["completions"]
        assert (entry["status"], entry["exit_status"], entry["error"]) == ("complete", 0, None)

    @pytest.mark.parametrize(
        ("script", "error"),
        [
            ("echo oh no >&2; exit 3", "it ended with exit status 3"),
            ("kill -9 $$", "it ended with signal 9"),
            ("sleep 60", "killed: it did not end within 0.3 s"),
        ],
    )
    def test_a_failed_command_is_reported(self, run, script, error) -> None:
        """The manifest and the log have the reason of the failure, and the end of the output."""
        runs.record(run)
        with capture_logs() as logs:
            made = look(run, last=True, on_complete=["sh", "-c", script], on_complete_timeout_seconds=0.3 if "sleep" in script else 60)  # fmt: skip
        (entry,) = read_step(run.path, 2)["completions"]
        assert (entry["status"], entry["error"]) == ("failed", error)
        assert entry["output"] == ("oh no\n" if "oh no" in script else "")
        assert [line["reason"] for line in logs if line["event"] == "on_complete.failed"] == [error]
        assert made.has_failed

    def test_a_command_whose_follower_died_is_lost(self, run, tmp_path) -> None:
        """A command that was running when its follower was killed is not run again."""
        command, ran = runs.note(tmp_path)
        claim = runs.record(run)
        entry = {"command": command, "status": "lost", "error": "x"}
        content = {
            "schema_version": 1,
            "run_id": "r",
            "step": 2,
            "writer": writer_identity(),
            "completions": [entry],
        }
        path = claim.fragment.parent / "on-complete.json"
        path.write_text(json.dumps(content))
        assert read_step(run.path, 2)["completions"][0]["status"] == "running"
        path.write_text(json.dumps({**content, "writer": runs.ended_writer()}))
        look(run, last=True, on_complete=command)
        assert ran() == []
        assert read_step(run.path, 2)["completions"][0]["status"] == "lost"

    def test_once_at_the_end_of_each_job(self, run, tmp_path) -> None:
        """The command at the end runs when all processes have ended: once for each job of the run."""
        command, ran = runs.note(tmp_path, "$STEPPROF_RECORDED_STEPS $STEPPROF_STATUS ${STEPPROF_STEP-none}")
        config = {"on_complete": command, "on_complete_when": "run"}
        runs.record(run, 2)
        runs.record(run, 4, status="partial")
        runs.tell_status(run, started_unix_ns=1)
        look(run, **config)
        assert ran() == []
        for job in (1, 2):
            runs.tell_status(run, ended=True, started_unix_ns=job)
            for _ in range(2):
                look(run, **config)
            assert ran() == ["2,4 partial none"] * job

    def test_a_command_that_cannot_be_claimed(self, run, tmp_path, mocker) -> None:
        """If the file with the result cannot be made, the command does not run, and the log has the reason."""
        command, ran = runs.note(tmp_path)
        runs.record(run)
        mocker.patch(
            "stepprof.follow.on_complete.write_exclusively",
            side_effect=OSError(28, "No space left on device"),
        )
        with capture_logs() as logs:
            look(run, last=True, on_complete=command)
        assert ran() == []
        assert [line["reason"] for line in logs] == ["not run: [Errno 28] No space left on device"]

    def test_secrets_among_its_arguments_are_not_stored(self, run, tmp_path) -> None:
        """The command gets its arguments; no file of the run has the secrets among them."""
        script = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(' '.join(sys.argv[1:]))"
        (tmp_path / "note.py").write_text(script)
        command = [sys.executable, str(tmp_path / "note.py"), "--token", "hunter2", "Cookie: a=b; c=hunter2"]
        runs.record(run)
        look(run, last=True, on_complete=command)
        assert (tmp_path / "got").read_text() == "--token hunter2 Cookie: a=b; c=hunter2"
        assert [path for path in run.path.rglob("*.json") if "hunter2" in path.read_text()] == []


class TestRunDirectory:
    def test_one_process_follows(self, run, tmp_path) -> None:
        """A second follower does nothing while the first one lives, and takes over when it has ended."""
        command, ran = runs.note(tmp_path)
        first, second = (Follower(run.path, Config(on_complete=command)) for _ in range(2))
        runs.tell_status(run, step=9)
        first.look()
        runs.record(run)
        assert second.look() is False
        assert ran() == []
        first.close()
        second.look()
        assert ran() == ["2 complete"]
        second.close()

    def test_a_run_directory_that_cannot_be_used(self, run, mocker) -> None:
        """A full disk is logged once, however often the follower looks, and the work is done afterwards."""
        runs.record(run)
        runs.tell_status(run, step=9)
        made = Follower(run.path, Config(upload="memory://full"))
        full = mocker.patch("stepprof.follow.uploaded.write_atomically", side_effect=OSError(28, "No space"))
        with capture_logs() as logs:
            for _ in range(3):
                made.look()
        assert [line["event"] for line in logs] == ["follow.failed"]
        assert made.has_failed
        mocker.stop(full)
        made.look()
        assert not made.has_failed
        assert (run.path / "step-000002/manifest" / UPLOADS).exists()
        made.close()

    @pytest.mark.parametrize("link", ["after", "spans", "watch", "step-000002", "step-000002/manifest"])
    def test_no_link_leads_its_files_out_of_the_run(self, run, tmp_path, memory, link) -> None:
        """A folder of the run that is a link stays without files of the follower, and the other steps do not."""
        outside = tmp_path / "outside"
        for step in (2, 3, 4):
            runs.record(run, step)
        (run.path / "spans").mkdir(exist_ok=True)
        (run.path / "watch").mkdir()
        if (run.path / link).exists():
            (run.path / link).rename(outside)
        outside.mkdir(exist_ok=True)
        (run.path / link).symlink_to(outside)
        before = sorted(path.relative_to(outside) for path in outside.rglob("*"))
        with capture_logs() as logs:
            made = look(
                run,
                last=True,
                upload="memory://up",
                on_complete=["true"],
                keep_bytes=1,
                watch={"enabled": True},
            )
        watch = Watch(run.path, Config(), WatchOptions())
        watch._headers["node", 1, 0] = {"host": "node", "pid": 1, "rank": 0}
        watch._mark(("node", 1, 0), "slow step", 1, {})
        runs.tell_status(run, step=9)
        outcome = Captures(run.path, Config(), WatchOptions()).record("slow step", {}, None, 0)
        assert ("links are not followed" in outcome) == (link == "watch"), outcome
        assert sorted(path.relative_to(outside) for path in outside.rglob("*")) == before
        if link not in ("spans", "watch"):
            assert made.has_failed
            assert any("links are not followed" in line.get("reason", "") for line in logs)
        assert [len(read_step(run.path, 3)[key]) for key in ("uploads", "completions", "pruned")] == (
            [0, 0, 0] if link == "after" else [1, 1, 1]
        )

    def test_a_run_directory_that_goes(self, run) -> None:
        """A run directory that was removed is not made again."""
        made = Follower(run.path, Config(keep_steps=1))
        for path in sorted(run.path.rglob("*"), reverse=True):
            path.unlink()
        run.path.rmdir()
        assert made.look(0.0) is True
        assert not run.path.exists()
        made.close()

    def test_a_run_of_another_user_is_refused(self, run, mocker) -> None:
        """A run of another user is refused in one sentence: its files would all be ignored."""
        mocker.patch.object(follower, "is_foreign", return_value=True)
        with pytest.raises(ConfigError, match="the run belongs to user"):
            Follower(run.path, Config(keep_steps=1))
