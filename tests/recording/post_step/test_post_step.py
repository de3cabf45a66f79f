"""The parts of the work after a recording: its configuration, complete steps, deletion and its limits, and
the checks of an upload.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
import runs
from counting import instructions_of
from fsspec.registry import known_implementations
from structlog.testing import capture_logs

from stepprof.analysis.post_step_notes import after_notes
from stepprof.analysis.verify import verify_run
from stepprof.cli.main import main
from stepprof.config.config import Config
from stepprof.config.loaders import FACTS, overrides
from stepprof.errors import ConfigError
from stepprof.host import subprocesses
from stepprof.host.process_identity import writer_identity
from stepprof.host.subprocesses import run_bounded
from stepprof.recording.post_step import completeness
from stepprof.recording.post_step.completeness import Peers, Step, read_step_for
from stepprof.recording.post_step.leader import Leader
from stepprof.recording.post_step.retention import choose, prune
from stepprof.recording.post_step.upload import uploads
from stepprof.recording.post_step.upload.child import Target
from stepprof.recording.post_step.upload.program import Program
from stepprof.recording.post_step.upload.uploads import missing
from stepprof.redaction.messages import hide
from stepprof.remote.ray.inside.follower import _OF_THE_DRIVER, spans_only
from stepprof.run.fragments import read_after
from stepprof.run.manifest import read_step
from stepprof.run.manifest_writer import Fragment, Origin
from stepprof.run.model import Window
from stepprof.run.requests import Request
from stepprof.run.schema import WindowEntry

MISTAKES = [
    ({"on_complete": ""}, 'on_complete = "": expected a command'),
    ({"on_complete": []}, "on_complete = []: expected a command"),
    ({"on_complete": ["a", 3]}, "expected a command"),
    ({"on_complete": 3}, "on_complete = 3: expected a command"),
    ({"on_complete": "say 'x"}, "cannot be split into arguments: No closing quotation"),
    (
        {"on_complete": "a | b"},
        '"|" is shell syntax, but no shell runs the command; did you mean ["sh", "-c", …]?',
    ),
    ({"on_complete": "a $STEPPROF_STEP"}, '"$STEPPROF_STEP" is shell syntax'),
    ({"on_complete": "a\0b"}, "has a NUL character"),
    ({"on_complete_when": "steps"}, 'on_complete_when = "steps": not known; did you mean "step"?'),
    ({"on_complete_timeout_seconds": 0}, "expected a finite number of seconds above 0"),
    ({"upload": 3}, "upload = 3: expected a URL"),
    ({"upload": "s4://bucket"}, 'upload = "s4://bucket": unknown scheme; did you mean "s3"?'),
    ({"upload": "gcz://bucket"}, "unknown scheme; did you mean "),
    ({"upload": "https://host/x"}, '"https://host/x": cannot be written to; must be a writable scheme'),
    ({"upload": "/mnt/x"}, 'did you mean "file:///mnt/x"?'),
    ({"upload": "bucket/x"}, "expected a URL"),
    ({"upload": "file://x"}, 'expected an absolute path; did you mean "file:///x"?'),
    ({"upload": "file:///x/../y"}, "leads out of its folder"),
    ({"upload": "s3://"}, "names no place"),
    ({"upload": "s3:///x"}, "names no place"),
    ({"upload": "simplecache::s3://b"}, "expected one URL, not a chain"),
    ({"keep_steps": 0}, "keep_steps = 0: too small; did you mean 1?"),
    ({"keep_bytes": "0"}, "keep_bytes"),
    ({"roles": {"actor": {"upload": "s3://b"}}}, "roles.actor.upload"),
    ({"uplaod": "s3://b"}, 'unknown key; did you mean "upload"?'),
]


class TestConfiguration:
    @pytest.mark.parametrize(("mapping", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
    def test_mistakes(self, mapping, message) -> None:
        """A mistake raises a ConfigError when the configuration is read. Where possible the
        error suggests the correction.
        """
        with pytest.raises(ConfigError) as caught:
            Config.from_mapping(mapping)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "sftp://me:hunter2@host/x",
            "s3://key:hunter2@bucket",
            "s3://b/x?sig=hunter2",
            "s3://b/x;token=hunter2",
            "s3://b/token=hunter2",
            "sftp://ghp_hunter2hunter2hunter2@host/x",
        ],
    )
    def test_a_secret_is_refused_and_not_repeated(self, url) -> None:
        """A URL with a password or a query is refused, because the run stores its configuration. The error
        does not repeat the secret.
        """
        with pytest.raises(ConfigError, match="password or a query") as caught:
            Config(upload=url)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            "https://me:hunter2@host/v1/traces",
            "https://hunter2@host/v1/traces",
            "https://host/v1/traces?api_key=hunter2",
            "https://host?hunter2",
            "https://host/v1/traces#hunter2",
            "https://host/v1;token=hunter2",
            "https://host/ghp_hunter2hunter2hunter2/v1",
        ],
    )
    def test_a_secret_in_the_endpoint(self, url) -> None:
        """The endpoint of OpenTelemetry has no password, query or key; the error does not repeat the secret."""
        with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS") as caught:
            Config.from_mapping({"otel": {"endpoint": url}})
        assert "hunter2" not in str(caught.value)

    def test_the_secrets_of_a_command_are_not_stored(self, run_script, tmp_path) -> None:
        """The command gets its arguments; no file of the run has the secrets among them."""
        ran = run_script(
            """
            import sys
            import stepprof
            script = "import sys; open('got', 'w').write(' '.join(sys.argv[1:]))"
            command = [sys.executable, "-c", script, "--token", "hunter2", "Cookie: a=b; c=hunter2"]
            with open("note.py", "w") as file:
                file.write(script)
            command = [sys.executable, "note.py", *command[3:]]
            stepprof.init({"output_dir": "runs", "backend": "null", "steps": "1", "on_complete": command})
            with stepprof.profile_step(1):
                pass
            """,
            env={"STEPPROF_ON_COMPLETE": "touch --token hunter2 x"},
        ).check()
        assert ran.stderr.count("hunter2") == 0
        assert (tmp_path / "got").read_text() == "--token hunter2 Cookie: a=b; c=hunter2"
        (run,) = (path for path in (tmp_path / "runs").iterdir() if path.name[0] != ".")
        files = list(run.rglob("*.json"))
        assert {"run.json", "on-complete.json"} <= {path.name for path in files}
        assert [path.name for path in files if "hunter2" in path.read_text()] == []

    def test_valid_settings_are_accepted(self) -> None:
        """Valid settings are accepted, and are unchanged after writing and reading."""
        config = Config(
            on_complete="notify 'a b'", upload="abfs://box@account.host/x/", keep_steps=3, keep_bytes="1GiB"
        )
        assert config.on_complete == ("notify", "a b")
        assert (config.upload, config.keep_bytes) == ("abfs://box@account.host/x", 2**30)
        assert Config.from_mapping(json.loads(json.dumps(config.to_dict()))) == config
        assert Config(on_complete=["sh", "-c", "a | b $X"]).on_complete[-1] == "a | b $X"

    @pytest.mark.parametrize("key", ["on_complete", "on_complete_when", "upload", "keep_steps", "keep_bytes"])
    def test_a_request_sets_none_of_it(self, key, tmp_path, capsys) -> None:
        """A request for a recording can set no command, upload or deletion, neither
        by a key nor inside a mapping.
        """
        value = {"on_complete": ["touch", str(tmp_path / "owned")], "upload": "file:///tmp/x"}.get(key, 1)
        with pytest.raises(ConfigError, match=f"{key} = .*unknown key"):
            Request.make(7, **{key: value})
        made = {**Request.make(7).to_dict(), "changes": {key: value}}
        with pytest.raises(ConfigError, match="unknown key"):
            Request.read(made)
        with pytest.raises(ConfigError):
            Request.read({**made, "changes": {key: {"command": value}}})
        with pytest.raises(ConfigError):
            Request.read({**made, "changes": {"torch": {key: value}}})
        runs.make_run(tmp_path)
        assert main(["trigger", str(tmp_path / "r"), "--step", "7", "--set", f"{key}=1"]) != 0
        assert "unknown key" in capsys.readouterr().err

    def test_an_actor_that_follows_the_driver(self) -> None:
        """An actor that follows the driver uploads its own files. It runs no command and deletes nothing."""
        config = Config(on_complete="x", upload="file:///x", keep_steps=1).to_dict()
        assert spans_only(config)["upload"] == "file:///x"
        assert not set(_OF_THE_DRIVER) & set(spans_only(config))
        assert {key for key in _OF_THE_DRIVER if key not in config} == set()

    def test_variables_with_facts_set_no_keys(self) -> None:
        """The variables that a command gets set no keys, so that the command can use stepprof
        itself. A wrong name is refused.
        """
        environ = {**dict.fromkeys(FACTS, "x"), "STEPPROF_RUN_ID": "r"}
        assert list(overrides(environ)) == []
        with pytest.raises(ConfigError, match="STEPPROF_STEPS"):
            list(overrides({"STEPPROF_STEP": "2"}))

    def test_nothing_is_loaded_unless_configured(self, run_script) -> None:
        """A session that does not configure this work imports none of its modules
        and starts no thread for it.
        """
        ran = run_script(
            """
            import sys, threading
            import stepprof
            stepprof.init({"output_dir": "runs", "backend": "null"})
            names = sorted(thread.name for thread in threading.enumerate())
            stepprof.shutdown()
            print(names, [name for name in sys.modules if name.startswith(("fsspec", "stepprof.recording.post_step"))])
            """
        ).check()
        assert ran.stdout.strip() == "['MainThread', 'stepprof'] []"

    def test_a_missing_package_is_named(self, monkeypatch) -> None:
        """The error names the package to install, for fsspec itself and for the scheme of the URL."""
        monkeypatch.setitem(known_implementations, "s3", {"class": "no_such.Class"})
        assert missing("s3://b") == "s3://b needs no_such, which is not installed: pip install no_such"
        find = uploads.importlib.util.find_spec
        monkeypatch.setattr(
            uploads.importlib.util, "find_spec", lambda name: None if name == "fsspec" else find(name)
        )
        assert 'install the extra "upload" of stepprof' in missing("file:///x")
        assert Config(upload="s3://b").upload == "s3://b"
        with pytest.raises(ConfigError, match='did you mean "s3"'):
            Config(upload="s4://b")


class TestChildProcess:
    def run(self, *argv, seconds=20.0, stop=None):
        return run_bounded(argv, os.environ, seconds, stop or threading.Event(), "stopped")

    def test_exit_status_and_output(self) -> None:
        """The exit status and the output are returned, also if the program
        closes its output before it ends.
        """
        ended = self.run("sh", "-c", "echo a; echo b >&2; exit 5")
        assert (ended.status, ended.killed, ended.output) == (5, None, "a\nb\n")
        assert self.run("sh", "-c", "echo a; exec >&- 2>&-; sleep 0.2; exit 6").status == 6

    def test_left_over_children_are_ended(self, tmp_path) -> None:
        """Children that the program leaves behind are killed, although they hold its output open."""
        began = time.monotonic()
        ended = self.run("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid")
        assert (ended.status, ended.killed) == (0, None)
        assert time.monotonic() - began < 5
        _gone(int((tmp_path / "pid").read_text()))

    def test_a_tail_of_much(self) -> None:
        """Of a long output the last part is kept completely."""
        ended = self.run(sys.executable, "-c", "import sys\nfor n in range(300000): print(n)")
        assert ended.output.endswith("299998\n299999\n")
        assert len(ended.output) == subprocesses.TAIL

    def test_a_child_stops_when_the_run_ends(self) -> None:
        """If the run has ended, a program is killed at once with this reason."""
        stop = threading.Event()
        stop.set()
        assert self.run("sleep", "600", stop=stop).killed == "stopped"

    def test_a_program_that_waits_for_every_child(self, run_script) -> None:
        """If SIGCHLD is ignored, the exit status is unknown, and both calls still return."""
        ran = run_script(
            """
            import os, signal, threading
            from stepprof.host.subprocesses import run_bounded
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            ended = run_bounded(["sh", "-c", "exit 3"], os.environ, 10, threading.Event(), "")
            late = run_bounded(["sleep", "60"], os.environ, 0.2, threading.Event(), "")
            print(ended.status, ended.killed, late.killed)
            """
        ).check()
        assert ran.stdout.strip() == "None None it did not end within 0.2 s"

    def test_the_program_inherits_no_descriptors(self, tmp_path) -> None:
        """The program inherits no descriptor of the job, not even an inheritable one,
        and has a session of its own.
        """
        with (tmp_path / "x").open("w") as file:
            os.set_inheritable(file.fileno(), True)
            ended = self.run(
                sys.executable,
                "-c",
                "import os; print(sorted(os.listdir('/proc/self/fd'))[:4], os.getsid(0) == os.getpid())",
            )
        assert ended.output == "['0', '1', '2', '3'] True\n"  # 3: the folder that is being listed


class TestWhole:
    def test_completeness_follows_from_the_fragments(self, tmp_path, monkeypatch) -> None:
        """A lost entry is pending while its process lives, and final once it has ended. A process on
        another host counts as living until its status says that it has ended.
        """
        run = runs.make_run(tmp_path)
        peers = Peers(run.path)
        claim = runs.record(run, step=2, status="lost", error="x", writer=writer_identity())
        assert read_step_for(run.path, 2, peers, uploads=False).pending
        runs.record(run, step=3, status="lost", error="x")
        assert (
            read_step_for(run.path, 3, peers, uploads=False).pending,
            read_step_for(run.path, 3, peers, uploads=False).status,
        ) == (False, "lost")
        elsewhere = {**writer_identity(), "host": "another"}
        runs.record(run, step=4, status="lost", error="x", writer=elsewhere)
        assert read_step_for(run.path, 4, peers, uploads=False).pending
        self.status(run, rank=1, writer=elsewhere, ended=True)
        peers.look()
        assert not read_step_for(run.path, 4, peers, uploads=False).pending
        (claim.fragment.parent / "half.json").write_text('{"windows": [')
        (claim.fragment.parent / "list.json").write_text("[]")
        os.mkfifo(claim.fragment.parent / "pipe.json")
        assert read_step_for(run.path, 2, peers, uploads=False).windows == 1
        assert read_step_for(run.path, 99, peers, uploads=False).windows == 0

    def test_an_engine_that_died(self, tmp_path) -> None:
        """An engine that died is lost for good, even while its driver lives."""
        run = runs.make_run(tmp_path)
        runs.tell_engines(
            run,
            runs.record_engine(run, status="lost", pending=False, health="dead", data=b""),
            writer=writer_identity(),
        )
        step = read_step_for(run.path, 2, Peers(run.path), uploads=False)
        assert (step.pending, step.status) == (False, "lost")

    def test_uploads_are_waited_for(self, tmp_path) -> None:
        """With uploads, a step is pending until each artifact has been uploaded or has failed."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run, writer=writer_identity())
        peers = Peers(run.path)
        assert read_step_for(run.path, 2, peers, uploads=True).pending
        content = json.loads(claim.fragment.read_text())
        claim.write({**content, "uploads": [{"path": "actor/rank-0.trace.json.gz", "status": "failed"}]})
        step = read_step_for(run.path, 2, peers, uploads=True)
        assert (step.pending, step.not_uploaded) == (False, 1)

    def test_ranks_that_have_not_reached_the_step_are_awaited(self, tmp_path, monkeypatch) -> None:
        """A step waits for living ranks that have not reached it. A rank on another host counts as
        ended if its status is too old.
        """
        run = runs.make_run(tmp_path)
        peers = Peers(run.path)
        self.status(run, rank=0, step=3)
        self.status(run, rank=1, step=2)
        self.status(run, rank=2, step=None)
        peers.look()
        assert (peers.here(1), peers.here(2), peers.here(3)) == (False, True, True)
        assert peers.others(writer_identity()) is False
        self.status(run, rank=1, step=2, writer=runs.ended_writer())
        peers.look()
        assert not peers.here(2)
        self.status(run, rank=1, step=2, writer={**writer_identity(), "host": "another"})
        peers.look()
        assert peers.here(2)
        assert peers.others(writer_identity())
        monkeypatch.setattr(completeness, "SILENT_SECONDS", 0.0)
        assert not peers.here(2)

    def test_ranks_of_an_earlier_job_are_not_awaited(self, tmp_path) -> None:
        """A step does not wait for a rank of an earlier job on another host once the
        new job has published a status.
        """
        run = runs.make_run(tmp_path)
        elsewhere = {**writer_identity(), "host": "another"}
        self.status(run, rank=1, step=2, writer=elsewhere)
        path = run.status_path(1)
        path.write_text(json.dumps({**json.loads(path.read_text()), "published_unix_ns": 10**18}))
        os.utime(path, (10**9, 10**9))
        peers = Peers(run.path)
        peers.look()
        assert peers.here(2)
        self.status(run, rank=0, step=3)
        peers.look()
        assert not peers.here(2)

    def test_each_further_rank_costs_the_same(self, tmp_path) -> None:
        """Reading a step costs the same for each further rank: the process of a
        fragment is looked up, not searched.
        """
        run = runs.make_run(tmp_path)
        costs = []
        for first, after in ((0, 20), (20, 40), (40, 80)):
            for rank in range(first, after):
                writer = {**writer_identity(), "host": f"node-{rank}"}
                self.status(run, rank=rank, writer=writer, ended=True)
                runs.record(run, rank=rank, data=b"", status="lost", writer=writer)
            peers = Peers(run.path)
            peers.look()
            costs.append(instructions_of(read_step_for, run.path, 2, peers, uploads=False))
        assert costs[2] - costs[1] < 2.06 * (costs[1] - costs[0])

    def status(self, run, rank, step=None, ended=False, writer=None) -> None:
        content = {
            "started_unix_ns": time.time_ns(),
            "rank": rank,
            "step": step,
            "ended": ended,
            "writer": writer or writer_identity(),
            "published_unix_ns": time.time_ns(),
            "run_id": "r",
        }
        path = run.status_path(rank)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "a/../../x", "", "a\\b", "manifest/a.json", None, 3]
    )
    def test_no_artifact_leads_out_of_its_step(self, tmp_path, path) -> None:
        """A path that leaves the step's folder, or leads into its manifest folder, is no artifact."""
        run = runs.make_run(tmp_path)
        runs.record(run, artifacts=[{"path": path, "bytes": 5}], data=b"")
        assert read_step_for(run.path, 2, Peers(run.path), uploads=False).artifacts == {}


HEADER = {"schema_version": 1, "run_id": "r", "writer": {}}


class TestPruning:
    def test_the_oldest_steps_are_chosen(self) -> None:
        """The oldest steps are chosen for deletion. The newest one always stays, and steps
        without artifacts do not count.
        """
        steps = [Step(n, artifacts={"a": n}) for n in (5, 6, 7)] + [Step(8)]
        assert [step.number for step, _ in choose(steps, 1, None)] == [5, 6]
        assert [step.number for step, _ in choose(steps, None, 13)] == [5]
        assert [step.number for step, _ in choose(steps, None, 1)] == [5, 6]
        assert choose(steps, 3, 18) == []
        assert choose([], 1, 1) == []

    def test_only_what_the_manifest_names(self, tmp_path) -> None:
        """The artifacts in the manifest and the folders that become empty are deleted.
        Other files of the step stay.
        """
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        folder = claim.folder
        (folder / "notes.txt").write_text("mine")
        (folder / "actor" / "notes.txt").write_text("mine")
        (folder / "rollout/replica-0/deep").mkdir(parents=True)
        (folder / "rollout/replica-0/deep/x").write_text("1")
        step = Step(2, artifacts={"actor/rank-0.trace.json.gz": 5, "rollout/replica-0": 1, "actor/gone": 1})
        entry = prune(run.path, step, "keep_steps = 1", HEADER)
        assert entry.kept == []
        left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        assert left == ["actor", "actor/notes.txt", "manifest", f"manifest/{claim.fragment.name}", "manifest/pruned.json", "notes.txt"]  # fmt: skip
        assert verify_run(run.path).problems == []

    @pytest.mark.parametrize("link", ["actor", "actor/rank-0.trace.json.gz", ".", "actor/inside"])
    def test_no_link_is_followed(self, tmp_path, link) -> None:
        """Deletion follows no link: of the step's folder, of the role's folder, of the file, or inside an
        artifact that is a folder.
        """
        outside = tmp_path / "outside"
        (outside / "actor").mkdir(parents=True)
        precious = [outside / "rank-0.trace.json.gz", outside / "actor" / "rank-0.trace.json.gz"]
        for file in precious:
            file.write_text("precious")
        run = runs.make_run(tmp_path / "runs")
        claim = runs.record(run, data=b"")
        artifacts = {"actor/rank-0.trace.json.gz": 8}
        if link == ".":
            (run.path / "step-000003").symlink_to(outside)
            (outside / "manifest").mkdir()
            prune(run.path, Step(3, artifacts=artifacts), "x", HEADER)
        else:
            place = claim.folder / link
            if link == "actor":
                place.rmdir()
            place.symlink_to(outside if link != "actor/rank-0.trace.json.gz" else precious[0])
            if link == "actor/inside":
                artifacts = {"actor": 8}
            entry = prune(run.path, Step(2, artifacts=artifacts), "x", HEADER)
            assert bool(entry.kept) == (link == "actor")
        assert [file.read_text() for file in precious] == ["precious"] * 2

    def test_deletions_are_noted_first(self, tmp_path) -> None:
        """If the note of the deletion cannot be written, no file is deleted."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        file = claim.folder / "actor/rank-0.trace.json.gz"
        (claim.fragment.parent / "pruned.json").mkdir()
        with pytest.raises(OSError, match="pruned"):
            prune(run.path, Step(2, artifacts={"actor/rank-0.trace.json.gz": 5}), "x", HEADER)
        assert file.exists()

    def test_files_that_cannot_be_deleted_are_reported(self, tmp_path, mocker) -> None:
        """A file that cannot be deleted is listed with the reason, in the entry
        and in the notes of the step.
        """
        run = runs.make_run(tmp_path)
        runs.record(run)
        unlink = os.unlink

        def refuse(name, *, dir_fd=None):
            if dir_fd is not None:
                raise PermissionError(13, "Permission denied")
            unlink(name)

        mocker.patch.object(os, "unlink", side_effect=refuse)
        entry = prune(run.path, Step(2, artifacts={"actor/rank-0.trace.json.gz": 5}), "x", HEADER)
        assert entry.kept == ["actor/rank-0.trace.json.gz: Permission denied"]
        assert "  not deleted: actor/rank-0.trace.json.gz: Permission denied" in after_notes(
            read_step(run.path, 2)
        )


class TestLeader:
    def leader(self, run, uploader=None, **config) -> Leader:
        return Leader(Config(**config), run, Origin(run, 0, 2), threading.Event(), uploader)

    def test_only_one_process_is_the_leader(self, tmp_path) -> None:
        """The second process becomes the leader when the first one has ended. The third one does
        so when the second has died.
        """
        run = runs.make_run(tmp_path)
        first, second, third = (self.leader(run, keep_steps=1) for _ in range(3))
        first.look(final=False)
        second.look(final=False)
        assert (first._claim is not None, second._claim) == (True, None)
        first.look(final=True)
        second.look(final=True)
        assert second._claim.name == "leader.2.json"
        gone = {**json.loads(second._claim.read_text()), "over": False, "writer": runs.ended_writer()}
        second._claim.write_text(json.dumps(gone))
        third.look(final=False)
        assert third._claim.name == "leader.3.json"

    def test_processes_that_do_not_lead_only_read(self, tmp_path) -> None:
        """A process that does not lead changes nothing in the shared folder, because
        thousands of them may look there.
        """
        run = runs.make_run(tmp_path)
        self.leader(run, keep_steps=1).look(final=False)
        os.utime(run.path / "after", ns=(0, 0))
        second = self.leader(run, keep_steps=1)
        for final in (False, True):
            second._looked = -100.0
            second.look(final=final)
        assert second._claim is None
        assert (run.path / "after").stat().st_mtime_ns == 0

    def test_a_participant_on_another_host(self, tmp_path, monkeypatch) -> None:
        """If the leader runs on another host or its file is damaged, another process leads once
        it has been silent too long.
        """
        run = runs.make_run(tmp_path)
        first = self.leader(run, keep_steps=1)
        first.look(final=False)
        content = json.loads(first._claim.read_text())
        first._claim.write_text(json.dumps({**content, "writer": {**writer_identity(), "host": "another"}}))
        second = self.leader(run, keep_steps=1)
        for _ in range(2):
            second._looked = -100.0
            second.look(final=False)
        assert second._claim is None
        monkeypatch.setattr(completeness, "SILENT_SECONDS", 0.0)
        second._looked = -100.0
        second.look(final=False)
        assert second._claim.name == "leader.2.json"
        second._claim.write_text("{")
        third = self.leader(run, keep_steps=1)
        for _ in range(2):
            third._looked = -100.0
            third.look(final=False)
        assert third._claim.name == "leader.3.json"

    @pytest.mark.parametrize("year", [1980, 2100])
    def test_the_end_of_a_run_does_not_depend_on_clocks(self, tmp_path, year) -> None:
        """The command at the end runs once per job of the run, whatever the clock of the file system says."""
        run = runs.make_run(tmp_path)
        command = ["sh", "-c", f"echo x >> {tmp_path}/ran"]
        for job in (1, 2):
            ranks = [self.leader(run, on_complete=command, on_complete_when="run") for _ in range(2)]
            for leader in ranks:
                leader.look(final=True)
                for path in (run.path / "after").glob("on-complete*"):
                    os.utime(path, ((year - 1970) * 31_556_952,) * 2)
            assert (tmp_path / "ran").read_text() == "x\n" * job

    def test_a_folder_that_cannot_be_looked_into(self, tmp_path) -> None:
        """If the folder for this work is a broken link, the leader can still be made."""
        run = runs.make_run(tmp_path)
        (run.path / "after").symlink_to("after")
        assert self.leader(run, on_complete=["true"]).completer is not None

    def test_statuses_are_read_only_while_needed(self, tmp_path) -> None:
        """The status files of the ranks, which may be thousands, are read only while a step is open."""
        run = runs.make_run(tmp_path)
        TestWhole().status(run, rank=1, step=1)
        leader = self.leader(run, keep_steps=1)
        leader.look(final=False)
        assert leader._peers._statuses == []
        runs.record(run)
        leader.look(final=False)
        assert len(leader._peers._statuses) == 1

    def test_a_rank_that_stays_in_a_step_is_awaited_ten_minutes(self, tmp_path, monkeypatch) -> None:
        """If a rank does not leave the step, the command of the step runs after ten minutes."""
        run = runs.make_run(tmp_path)
        runs.record(run)
        TestWhole().status(run, rank=1, step=2)
        leader = self.leader(run, on_complete=["touch", str(tmp_path / "ran")])
        leader.look(final=False)
        assert not (tmp_path / "ran").exists()
        monkeypatch.setattr("stepprof.recording.post_step.leader.LATE_SECONDS", 0.0)
        leader.look(final=False)
        assert (tmp_path / "ran").exists()

    def test_no_command_is_begun_when_no_time_is_left(self, tmp_path) -> None:
        """If no time is left, the command is not started and the step not deleted. A process that
        continues the run does both.
        """
        run = runs.make_run(tmp_path)
        first = runs.record(run, step=2).folder / "actor" / "rank-0.trace.json.gz"
        runs.record(run, step=3)
        command = ["sh", "-c", f"ls $STEPPROF_STEP_DIR/actor >> {tmp_path}/ran"]
        leader = self.leader(run, on_complete=command, keep_steps=1)
        leader.completer.stop.set()
        leader.look(final=True)
        assert not list(run.path.rglob("on-complete*"))
        assert first.exists()
        self.leader(run, on_complete=command, keep_steps=1).look(final=False)
        assert (tmp_path / "ran").read_text() == "rank-0.trace.json.gz\n" * 2
        assert not first.exists()

    def test_a_command_that_cannot_be_taken(self, tmp_path) -> None:
        """If the command's claim cannot be written, the command does not run, and the log
        and the error give the reason.
        """
        run = runs.make_run(tmp_path)
        runs.record(run)
        leader = self.leader(run, on_complete=["touch", str(tmp_path / "ran")])
        with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
            patch.setattr("stepprof.recording.post_step.hook.write_exclusively", _no_space)
            leader.look(final=False)
        assert not (tmp_path / "ran").exists()
        assert [line["reason"] for line in logs] == ["not run: [Errno 28] No space left on device"]
        assert leader.completer.last_error == "on_complete: not run: [Errno 28] No space left on device"

    def test_a_pruned_capture_that_others_joined(self, tmp_path) -> None:
        """If a capture that another window joined was deleted, `check` reports no problem. Its bytes still
        count for the watch's budget.
        """
        run = runs.make_run(tmp_path)
        runs.record(run, step=2)
        runs.record(
            run, step=3, role="actor", status="joined", data=b"", capture={"step": 2, "stem": "actor/rank-0"}
        )
        runs.record(run, step=4)
        self.leader(run, keep_steps=1).look(final=True)
        assert verify_run(run.path).problems == []
        assert [len(read_step(run.path, step)["pruned"]) for step in (2, 3, 4)] == [1, 0, 0]
        from stepprof.recording.control.auto_capture import AutoCaptures

        captures = AutoCaptures(run.path, Config().watch, None, lambda policy: None)
        assert (
            captures._bytes_of({"capture_step": 2, "capture_rank": 0})
            == read_step(run.path, 2)["pruned"][0]["bytes"]
            > 0
        )

    def test_a_run_directory_that_cannot_be_used(self, tmp_path) -> None:
        """If a file has the name of the folder, one line is logged, however often the leader looks."""
        run = runs.make_run(tmp_path)
        leader = self.leader(run, keep_steps=1)
        (run.path / "after").write_text("no folder")
        with capture_logs() as logs:
            for _ in range(3):
                leader._looked = -100.0
                leader.look(final=False)
        assert len(logs) == 1


class TestUploader:
    def test_a_long_run_is_not_remembered_as_a_whole(self, tmp_path, monkeypatch) -> None:
        """The uploader forgets files that were uploaded, except the latest ones. It
        keeps failed ones up to a limit.
        """
        monkeypatch.setattr(uploads, "REMEMBERED", 3)
        run = runs.make_run(tmp_path)
        uploader = uploads.Uploader(run, "file:///x", 1.0)
        origin = Origin(run, 0, 1)
        for number in range(10):
            fragment = Fragment(origin, Window(number, None), lambda work: None)
            due = uploads._Due(fragment, sent=number != 4)
            uploader._known[number] = due
        uploader._forget()
        assert list(uploader._known) == [4, 7, 8, 9]
        monkeypatch.setattr(uploads, "REMEMBERED_FAILURES", 2)
        uploader._forget()
        assert list(uploader._known) == [8, 9]

    def test_a_manifest_that_changes_is_uploaded_again(self, tmp_path) -> None:
        """A manifest that changes replaces its earlier version in the store, and the
        artifact is not uploaded again.
        """
        run = runs.make_run(tmp_path)
        origin = Origin(run, 0, 1)
        uploader = uploads.Uploader(run, f"file://{tmp_path}/up", 30.0)
        origin.observers.append(uploader.take)
        uploader.start()
        fragment = Fragment(origin, Window(2, "actor"), lambda work: work())
        claim = fragment.write_ahead()
        (claim.folder / "actor/x.json").write_text("[]")
        artifacts = [{"path": "actor/x.json", "kind": None, "bytes": 2, "events": None}]
        fragment.windows.append(WindowEntry(pending=True, artifacts=artifacts))
        fragment.write()
        assert uploader.pending == 1  # the run's description; no file of an unfinished capture
        fragment.windows[0].update(status="complete", pending=False)
        fragment.write()
        copy = tmp_path / "up" / "r" / "step-000002" / "manifest" / "actor-rank-0.json"
        _until(copy.exists)
        fragment.windows[0].body_error = "late"
        fragment.write()
        _until(lambda: "late" in copy.read_text())
        uploader.close(20, [])
        assert (uploader.failures, fragment.uploads[0].status, uploader.pending) == (0, "uploaded", 0)

    def test_keys_in_a_stores_message_are_masked(self, tmp_path) -> None:
        """The reason of a failed upload has no secret, even in a long message, and
        is one line of limited length.
        """
        key, file = "sk-canary-5f2e9", tmp_path / "a"
        hide(key)
        file.touch()
        url = f"file:///dev/null/\x1b[2J{'x' * 420}{key}/{key * 100}"
        with Program(url, threading.Event(), 1) as program:
            reason = program.upload(file, "a", time.monotonic() + 60)["error"]
        assert "NotADirectoryError" in reason
        assert "canary" not in reason
        assert reason.isprintable()
        assert len(reason) <= 501


class TestTarget:
    @pytest.fixture
    def file(self, tmp_path) -> Path:
        path = tmp_path / "a"
        path.write_bytes(b"x" * 5000)
        return path

    @pytest.fixture
    def memory(self):
        files = fsspec.filesystem("memory")
        yield files
        files.store.clear()

    def test_an_existing_identical_file_counts_as_uploaded(self, file, memory) -> None:
        """An identical file in the store counts as uploaded, and a different one is a failure. With
        `replace` it is overwritten.
        """
        target = Target("memory://bucket", 1, 0.0)
        assert target.upload(file, "d/a")["verified"] == "size"
        assert target.upload(file, "d/a")["verified"] == "read"
        file.write_bytes(b"y" * 5000)
        outcome = target.upload(file, "d/a")
        assert (outcome["status"], outcome["error"]) == (
            "failed",
            "another file has this name already, with 5000 bytes",
        )
        assert target.upload(file, "d/a", replace=True)["status"] == "uploaded"
        assert memory.cat("/bucket/d/a") == b"y" * 5000

    @pytest.mark.parametrize("key", ["ETag", "md5Hash", "content_settings"])
    def test_an_object_is_read_if_the_stores_checksum_differs(self, file, memory, monkeypatch, key) -> None:
        """If the store's checksum agrees, it suffices. If it differs, the object is read,
        and a wrong object is removed.
        """
        digest = hashlib.md5(file.read_bytes()).digest()
        stated = {"ETag": f'"{digest.hex()}"', "md5Hash": base64.b64encode(digest).decode(), "content_settings": {"content_md5": bytearray(digest)}}[key]  # fmt: skip
        wrong = {"ETag": f'"{bytes(16).hex()}"', "md5Hash": base64.b64encode(bytes(16)).decode(), "content_settings": {"content_md5": bytearray(16)}}[key]  # fmt: skip
        info = memory.info
        target = Target("memory://bucket", 1, 0.0)
        for value, verified in ((stated, "md5"), (wrong, "read")):
            monkeypatch.setattr(memory, "info", lambda path, value=value: {**info(path), key: value})
            assert target.upload(file, f"d/{verified}")["verified"] == verified
        monkeypatch.setattr(memory, "put_file", lambda local, remote: memory.pipe(remote, b"z" * 5000))
        outcome = target.upload(file, "d/other")
        assert "the uploaded file differs" in outcome["error"]
        monkeypatch.undo()
        assert not memory.exists("/bucket/d/other")

    def test_a_store_that_is_down_delays_only_one_file(self, file, memory, monkeypatch) -> None:
        """After a file failed on all its tries, each further file gets one try until one succeeds."""
        put = memory.put_file
        monkeypatch.setattr(memory, "put_file", lambda *_: (_ for _ in ()).throw(OSError("down")))
        target = Target("memory://bucket", 3, 0.001)
        assert [target.upload(file, name)["tries"] for name in "abc"] == [3, 1, 1]
        monkeypatch.setattr(memory, "put_file", put)
        assert [target.upload(file, name)["tries"] for name in "de"] == [1, 1]
        assert (
            target.upload(file.with_name("no"), "n")["error"]
            == "it cannot be read: No such file or directory"
        )

    def test_a_folder_is_an_artifact_too(self, tmp_path, memory) -> None:
        """An artifact that is a folder is uploaded with all its files, without links.
        An empty folder is an error.
        """
        from stepprof.recording.post_step.upload import child

        (tmp_path / "out/deep").mkdir(parents=True)
        (tmp_path / "out/a").write_text("a")
        (tmp_path / "out/deep/b").write_text("bb")
        (tmp_path / "secret").write_text("s")
        (tmp_path / "out/link").symlink_to(tmp_path / "secret")
        (tmp_path / "out/links").symlink_to(tmp_path)
        target = Target("memory://bucket", 1, 0.0)
        outcome = child._upload(target, {"local": str(tmp_path / "out"), "name": "n"})
        assert (outcome["status"], outcome["bytes"]) == ("uploaded", 3)
        assert sorted(memory.find("/bucket/n")) == ["/bucket/n/a", "/bucket/n/deep/b"]
        (tmp_path / "empty").mkdir()
        assert (
            child._upload(target, {"local": str(tmp_path / "empty"), "name": "n"})["error"]
            == "an empty folder"
        )


class TestDoctor:
    def test_doctor_tests_the_upload(self, tmp_path) -> None:
        """`doctor` writes a file to the store and removes it afterwards. A path that
        cannot be a folder is a problem.
        """
        from stepprof.doctor.upload import upload_findings

        (finding,) = upload_findings(f"file://{tmp_path}/up", 30)
        assert (finding.level, list((tmp_path / "up").iterdir())) == ("ok", [])
        (tmp_path / "file").touch()
        (finding,) = upload_findings(f"file://{tmp_path}/file", 30)
        assert finding.level == "problem"
        with pytest.raises(ConfigError):
            list(upload_findings("s4://x", 1))


class TestReading:
    def test_damaged_entries_are_corrected_and_reported(self) -> None:
        """Values of a wrong type are replaced and reported. A lost command of a
        living process is read as running.
        """
        entry = {"path": 3, "url": [], "bytes": "x", "status": "uploaded", "more": 1}
        known, problems = read_after("uploads", entry, None)
        assert (known["path"], known["url"], known["bytes"], known["more"], len(problems)) == (
            "",
            None,
            None,
            1,
            3,
        )
        known, problems = read_after("pruned", {"paths": [1], "kept": "x"}, None)
        assert (known["paths"], known["kept"], len(problems)) == ([], [], 2)
        known, _ = read_after("completions", {"status": "lost", "error": "x"}, writer_identity())
        assert (known["status"], known["error"]) == ("running", None)

    def test_notes_of_nearly_nothing(self, tmp_path) -> None:
        """Empty entries still result in one note each, and `show` can print the step."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run)
        for key in ("uploads", "completions", "pruned"):
            content = {**HEADER, "step": 2, key: [{}, 3]}
            (claim.fragment.parent / f"{key}.json").write_text(json.dumps(content))
        notes = after_notes(read_step(run.path, 2))
        assert len(notes) == 3
        assert main(["show", str(run.path), "--step", "2"]) == 0


def _no_space(*_) -> bool:
    raise OSError(28, "No space left on device")


def _until(test) -> None:
    deadline = time.monotonic() + 20
    while not test():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _gone(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} lives")
