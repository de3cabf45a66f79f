"""Claims of another user, or damaged ones, in the folder in which a job looks for its run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from other_user import as_other_user, needs_root, plant

from stepprof.errors import ConfigError
from stepprof.host.process_identity import writer_identity
from stepprof.run import rendezvous
from stepprof.run.layout import open_run
from stepprof.run.names import is_plain_name
from stepprof.run.rendezvous import Launcher, claim_for_launcher
from stepprof.run.run_id import agree_on_run

LAUNCHER = Launcher("h1", "L1", 1000.0)


def claim(output_dir: Path, launcher: Launcher = LAUNCHER) -> str:
    return claim_for_launcher(output_dir, "k", launcher, 4)


def folder_of(output_dir: Path) -> Path:
    """Return the folder that contains the claims of the key `k`."""
    with tempfile.TemporaryDirectory() as name:
        claim(Path(name))
        (made,) = (Path(name) / ".claims").iterdir()
    return output_dir / ".claims" / made.name


def member_of(folder: Path) -> str:
    """Return the suffix of the file that registers this launcher's host in a claim."""
    with tempfile.TemporaryDirectory() as name:
        claim(Path(name))
        (made,) = (Path(name) / ".claims" / folder.name).glob("000001.*.json")
    return made.name.removeprefix("000001")


def runs(output_dir: Path) -> list[str]:
    return sorted(path.name for path in output_dir.iterdir() if path.name[0] != ".")


@needs_root
class TestAnotherUsersClaim:
    def planted(self, **content: object) -> str:
        return json.dumps({"founded": 1000.0, "launcher": "L1", "world_size": 4, **content})

    @pytest.mark.parametrize("run_id", ["theirs", "/tmp/theirs", "../theirs", ".."])
    def test_another_users_claim_is_not_joined(self, shared, run_id):
        """A claim of another user is not followed, whether it names a path or a plain name."""
        folder = folder_of(shared)
        plant(folder / "000001.json", self.planted(run_id=run_id))
        found = claim(shared)
        assert found != run_id
        assert runs(shared) == [found]
        assert claim(shared) == found

    def test_agreement_of_the_launcher(self, shared):
        """If another user writes the launcher's agreement, it is not followed.
        All ranks still find one run.
        """
        folder = folder_of(shared)
        with tempfile.TemporaryDirectory() as name:
            claim(Path(name))
            (agreed,) = (Path(name) / ".claims" / folder.name).glob("launcher-*")
        plant(folder / agreed.name, self.planted(run_id="../theirs"))
        found = [claim(shared) for _ in range(3)]
        assert found == [found[0]] * 3
        assert runs(shared) == found[:1]

    def test_names_that_are_taken(self, shared):
        """Files of another user with the names of claims and members cause no wait.
        The next free number is used.
        """
        folder = folder_of(shared)
        plant(folder / "000001.json", "{")
        as_other_user(
            'cd "$1"; for n in $(seq 2 40); do mkfifo "00000$n.json"; done; ln -s /dev/zero 000041.json',
            folder,
        )
        plant(folder / f"000001{member_of(folder)}", "{}")
        plant(folder / "99999999999999999999.json", "{}")
        began = time.monotonic()
        found = claim(shared)
        assert time.monotonic() - began < 20
        assert claim(shared, Launcher("h2", "L2", 1001.0)) == found

    def test_more_than_a_job_makes(self, shared, monkeypatch, caplog):
        """If a folder contains more files than a job makes, the error names the limit and says to
        remove the folder. A job gets a run of its own then, and a line in its log.
        """
        monkeypatch.setattr(rendezvous, "MOST_FILES", 10)
        claim(shared)
        folder = folder_of(shared)
        folder.chmod(0o777)
        as_other_user('cd "$1"; for n in $(seq 20); do : > "$n.json"; done', folder)
        with pytest.raises(ConfigError, match="more than 10 files; remove this folder"):
            claim(shared, Launcher("h2", "L2", 1001.0))
        environ = {"MASTER_ADDR": "h", "MASTER_PORT": "1"}
        monkeypatch.setattr(rendezvous, "_digest", lambda text: folder.name)
        found = agree_on_run(shared, run_id=None, world_size=4, environ=environ)
        assert found.source == "process"
        assert "more than 10 files" in caplog.text

    @pytest.mark.parametrize(
        "attack",
        [
            'ln -s "$2" "$1/.claims"',
            'ln -s /none "$1/.claims"',
            'mkdir "$1/.claims"',
            'mkfifo "$1/.claims"',
            ': > "$1/.claims"; mkdir "$1/.claims.2"; ln -s "$2" "$1/.claims.3"',
        ],
    )
    def test_the_folder_of_another_user(self, shared, tmp_path, attack):
        """If `.claims` is another user's, or a link, the ranks of a job meet in the next name, and no file is
        written at the target of a link.
        """
        as_other_user(attack, shared, tmp_path)
        found = [claim(shared) for _ in range(2)]
        assert found == [found[0]] * 2
        assert claim(shared, Launcher("h2", "L2", 1001.0)) == found[0]
        assert list(tmp_path.iterdir()) == []

    def test_init_in_a_folder_of_everybody(self, shared):
        """A rank of torchrun calls `init` in a folder that every user can write. After another user has
        replaced the claims, it records below its own output_dir in a new run.
        """
        script = (
            "import stepprof, sys\n"
            "session = stepprof.init({'output_dir': sys.argv[1], 'steps': '2', 'backend': 'null'})\n"
            "print(session.path)\n"
        )
        environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "WORLD_SIZE": "2"}

        def rank() -> Path:
            command = [sys.executable, "-c", script, str(shared)]
            done = subprocess.run(
                command,
                env={**os.environ, **environ},
                stdout=subprocess.PIPE,
                text=True,
                timeout=200,
                check=True,
            )
            return Path(done.stdout.strip())

        first = rank()
        (folder,) = (shared / ".claims").iterdir()
        ours = {path.name: json.loads(path.read_bytes()) for path in folder.iterdir()}
        for path in folder.iterdir():
            path.unlink()
        folder.chmod(0o777)
        for name, content in ours.items():
            plant(folder / name, json.dumps({**content, "run_id": "/tmp/../theirs"}))
        second = rank()
        assert second.parent == shared
        assert second != first

    def test_a_run_that_the_parent_did_not_open(self, shared, monkeypatch):
        """A `run.json` of another user, or one that names another folder, is not used. One that
        names its own folder is used.
        """
        content = {"writer": writer_identity(os.getppid()), "run_id_from": "process", "created_unix_ns": 1}
        plant(shared / "theirs" / "run.json", json.dumps({**content, "run_id": "theirs"}))
        (shared / "mine").mkdir()
        (shared / "mine" / "run.json").write_text(json.dumps({**content, "run_id": "../theirs"}))
        assert rendezvous.run_of_parent(shared) is None
        (shared / "mine" / "run.json").write_text(json.dumps({**content, "run_id": "mine"}))
        assert rendezvous.run_of_parent(shared) == "mine"


CONTENTS = [
    "{}",
    "[]",
    "null",
    '{"run_id": null}',
    '{"run_id": 7}',
    '{"run_id": ""}',
    '{"run_id": "/tmp/x"}',
    '{"run_id": "../x"}',
    '{"run_id": "x/y"}',
    '{"run_id": "x\\u0000y"}',
    '{"run_id": "\\ud800"}',
    '{"run_id": "' + "x" * 5000 + '"}',
    '{"run_id": "r", "world_size": 4, "founded": NaN}',
    '{"run_id": "r", "world_size": 4, "founded": 1' + "0" * 400 + "}",
    '{"run_id": "r", "world_size": 4, "founded": 1' + "0" * 5000 + "}",
    '{"run_id": "r", "world_size": {"x": 1}, "founded": [], "launcher": {}}',
    "[" * 60_000,
    '{"run_id":' * 6000,
    "\ud800",
]


class TestDamagedFiles:
    @pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
    @pytest.mark.parametrize("name", ["launcher", "claim", "member", "run.json"])
    def test_init_finds_a_run(self, tmp_path, monkeypatch, content, name):
        """Whatever the damaged file contains, a run below output_dir is found."""
        monkeypatch.setattr(rendezvous, "_UNREADABLE_SECONDS", 0.01)
        claim(tmp_path)
        folder = folder_of(tmp_path)
        pattern = {"launcher": "launcher-*", "claim": "000001.json", "member": "000001.*.json"}.get(name)
        for path in folder.glob(pattern or "none"):
            path.write_bytes(content.encode(errors="surrogatepass"))
        if pattern is None:
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / "run.json").write_bytes(content.encode(errors="surrogatepass"))
            rendezvous.run_of_parent(tmp_path)
        found = claim(tmp_path)
        assert is_plain_name(found)
        assert (tmp_path / found).parent == tmp_path

    def test_an_environment_that_is_not_utf8(self, tmp_path):
        """Variables of the environment that are not UTF-8 do not prevent a run."""
        environ = {"MASTER_ADDR": "h\udcff", "MASTER_PORT": "\udc80", "TORCHELASTIC_RUN_ID": "none"}
        assert agree_on_run(tmp_path, run_id=None, world_size=2, environ=environ).source == "launcher"
        named = {"STEPPROF_RUN_ID": "job\ud800"}
        assert is_plain_name(agree_on_run(tmp_path, run_id=None, world_size=2, environ=named).run_id)

    @pytest.mark.parametrize("output_dir", ["runs\0", "runs\ud800", "x" * 300])
    def test_a_folder_that_cannot_be(self, tmp_path, output_dir):
        """If output_dir cannot be a folder, a ConfigError names the key."""
        with pytest.raises(ConfigError, match="output_dir = "):
            open_run(tmp_path / output_dir, run_id=None, rank=0, world_size=1, environ={}, description={})
