"""Who wrote something, and whether it still lives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stepprof.host import process_identity
from stepprof.host.process_identity import is_alive, process_start, writer_identity


@pytest.fixture
def child():
    """Return a process that lives until it is asked to end."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


class TestWriterIdentity:
    def test_names_this_process(self):
        """The same for the life of the process, and JSON-able."""
        assert writer_identity() == writer_identity()
        assert writer_identity()["pid"] == os.getpid()

    def test_without_proc_identity_fields_are_none(self, monkeypatch, tmp_path):
        """Without /proc (macOS, Windows) there is neither boot nor start."""
        monkeypatch.setattr(process_identity, "Path", lambda *_: tmp_path / "none")
        monkeypatch.setattr(process_identity, "_BOOT_ID", tmp_path / "none")
        identity = writer_identity()
        assert [identity[key] for key in ("pid_start", "boot_id", "pid_namespace")] == [None, None, None]


class TestIsAlive:
    def test_a_process_of_this_host(self, child):
        """True while it lives, False when it has ended, also before its parent has waited for it."""
        identity = {**writer_identity(), "pid": child.pid, "pid_start": process_start(child.pid)}
        assert is_alive(identity) is True
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(identity) is False
        child.wait()
        assert is_alive(identity) is False

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            ({"pid_start": 1}, False),
            ({"pid_start": None}, True),
            ({"boot_id": "another"}, False),
            ({"host": "another"}, None),
            ({"pid_namespace": "pid:[1]"}, None),
            ({"pid_namespace": None}, True),
            ({"pid": None}, None),
            ({"pid": 0}, None),
            ({"pid": "7"}, None),
        ],
    )
    def test_liveness_is_known_only_on_this_host(self, change, expected):
        """A process id that was given out again is another process; of another host or container nothing is known."""
        assert is_alive({**writer_identity(), **change}) is expected

    def test_without_proc_only_the_process_id_is_used(self, monkeypatch, tmp_path, child):
        """Without /proc only the process id is used. On Windows it is not used either."""
        monkeypatch.setattr(process_identity, "_BOOT_ID", tmp_path / "none")
        identity = {**writer_identity(), "pid": child.pid}
        assert is_alive(identity) is True
        child.kill()
        child.wait()
        assert is_alive(identity) is False
        monkeypatch.setattr(
            process_identity.os, "kill", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not yours"))
        )
        assert is_alive(identity) is True
        monkeypatch.setattr(process_identity, "_POSIX", False)
        assert is_alive(identity) is None


class TestProcessStart:
    def test_no_such_process_has_no_start(self):
        """None for a process that does not exist, or an unreadable line."""
        assert process_start(2**22 + 1) is None

    def test_a_name_with_spaces_and_brackets(self, tmp_path):
        """The name of the process does not shift the fields."""
        odd = tmp_path / "a) S 1 (b"
        odd.symlink_to("/bin/sleep")
        process = subprocess.Popen([odd, "60"])
        try:
            assert abs(process_start(process.pid) - process_start(os.getpid())) < 100 * 3600 * 24
        finally:
            process.kill()
            process.wait()
