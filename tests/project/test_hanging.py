"""What hangs in the tests says where, and ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run(tmp_path, test, *, seconds):
    """Run a file of tests in a process of its own, in which a test, or the end, may last so long."""
    (tmp_path / "conftest.py").write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
import hanging
hanging.MORE_SECONDS = hanging.END_SECONDS = {seconds}
hanging.watch_end.__defaults__ = ({seconds},)
from conftest_of_ours import *
"""
    )
    ours = Path(__file__).parents[1] / "conftest.py"
    (tmp_path / "conftest_of_ours.py").write_text(ours.read_text())
    (tmp_path / "test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not torch and not demo and not ray",
         "-o", "timeout=1", "-o", "timeout_method=signal", "test_it.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


class TestAProcessThatHangs:
    def test_at_its_end(self, tmp_path) -> None:
        """A thread that a test has left keeps it: it is named, with where it stands."""
        ran = run(
            tmp_path,
            """
import threading
def keep():
    threading.Event().wait()
def test_leaves_a_thread():
    threading.Thread(target=keep).start()
""",
            seconds=2,
        )
        assert "1 passed" in ran.stdout
        assert ran.returncode == 1
        assert "Timeout (0:00:02)!" in ran.stderr
        assert "in keep" in ran.stderr

    def test_in_c(self, tmp_path) -> None:
        """Where no exception reaches it."""
        ran = run(
            tmp_path,
            """
import ctypes
def test_waits_in_c():
    while True:
        try:
            ctypes.PyDLL(None).sleep(1000)
        except BaseException:
            pass
""",
            seconds=2,
        )
        assert ran.returncode == 1
        assert "Timeout (0:00:03)!" in ran.stderr
        assert "in test_waits_in_c" in ran.stderr
