"""The identity of a writing process, and whether that process still lives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from stepprof.host import process_identity
from stepprof.host.process_identity import is_alive, process_start, writer_identity


@pytest.fixture
def child():
    """Yield a process that lives until its stdin is closed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


class TestWriterIdentity:
    def test_names_this_process(self):
        """The identity names this process and does not change."""
        assert writer_identity() == writer_identity()
        assert writer_identity()["pid"] == os.getpid()

    def test_without_proc_identity_fields_are_none(self, monkeypatch, tmp_path):
        """Without /proc, as on macOS and Windows, the start, the boot and the namespace are None."""
        monkeypatch.setattr(process_identity, "Path", lambda *_: tmp_path / "none")
        monkeypatch.setattr(process_identity, "_BOOT_ID", tmp_path / "none")
        identity = writer_identity()
        assert [identity[key] for key in ("pid_start", "boot_id", "pid_namespace")] == [None, None, None]


class TestIsAlive:
    def test_a_process_of_this_host(self, child):
        """A process is alive until it has ended, also before its parent has waited for it."""
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
        """A process id that was used again counts as ended. For another host or
        container, the result is None.
        """
        assert is_alive({**writer_identity(), **change}) is expected

    def test_without_proc_only_the_process_id_is_used(self, monkeypatch, tmp_path, child):
        """Without /proc, the process id decides on POSIX, and on Windows the result is None."""
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
        """A process that does not exist has no start."""
        assert process_start(2**22 + 1) is None

    def test_a_name_with_spaces_and_brackets(self, tmp_path):
        """Spaces and brackets in the name of a process do not change its start."""
        odd = tmp_path / "a) S 1 (b"
        odd.symlink_to("/bin/sleep")
        process = subprocess.Popen([odd, "60"])
        try:
            assert abs(process_start(process.pid) - process_start(os.getpid())) < 100 * 3600 * 24
        finally:
            process.kill()
            process.wait()
