"""Tests that hang: the run names them and ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import hanging
import pytest
from ran import Ran


def start(tmp_path, test, *options, seconds):
    """Start a file of tests in a separate process, in which a test, or the end, may last this long. Return
    the process and its output files.
    """
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
    # files, not pipes: a pipe ends only when the last process that a test has left ends
    written = tmp_path / "stdout", tmp_path / "stderr"
    with written[0].open("w") as stdout, written[1].open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-n", "0", "-rN", "-p", "no:cacheprovider", "-m", "not torch and not demo and not ray",
             "-o", "timeout=1", "-o", "timeout_method=signal", *options, "test_it.py"],
            cwd=tmp_path, stdout=stdout, stderr=stderr,
        )  # fmt: skip
    return process, *written


def run(tmp_path, test, *options, seconds):
    """Run the file of tests to its end."""
    process, stdout, stderr = start(tmp_path, test, *options, seconds=seconds)
    code = process.wait(timeout=100)
    return Ran(code, stdout.read_text(), stderr.read_text())


HELD = """
import ctypes, os, time
def test_one_that_passes():
    pass
def test_keeps_a_child():
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    while True:
        try:
            ctypes.PyDLL(None).sleep(1000)
        except BaseException:
            pass
def test_another():
    pass
"""
"""A test that waits for its child, and neither ends."""


class TestAWorkerThatHangs:
    @pytest.mark.parametrize("dist", ["loadscope", "worksteal"])
    def test_a_living_child_does_not_delay_the_end(self, tmp_path, dist) -> None:
        """The run ends soon after the time limit, although the child of a worker lives. It names the test
        once, with the status of a crash.
        """
        began = time.monotonic()
        ran = run(tmp_path, HELD, "-n", "2", "--dist", dist, seconds=2)
        assert time.monotonic() - began < 100  # the child lives for 1000 s
        assert ran.returncode == hanging.CRASHED
        assert ran.stdout.count("crashed while running 'test_it.py::test_keeps_a_child'") == 1
        assert "did not end: test_it.py::test_keeps_a_child" in ran.stdout
        assert "Timeout (0:00:03)!" in ran.stderr
        assert "in test_keeps_a_child" in ran.stderr

    def test_an_interrupted_run_names_the_running_tests(self, tmp_path) -> None:
        """If a run is interrupted, its output names the tests that were running."""
        test = """
import pathlib, time
def test_lasts():
    pathlib.Path("begun").touch()
    time.sleep(60)
"""
        process, stdout, _ = start(tmp_path, test, "-n", "1", "-o", "timeout=0", seconds=2)
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=200) == pytest.ExitCode.INTERRUPTED
        assert "did not end: test_it.py::test_lasts" in stdout.read_text()


class TestAProcessThatHangs:
    def test_a_thread_that_keeps_the_process_is_named(self, tmp_path) -> None:
        """If a thread that a test has left keeps the process alive, the output names
        the function in which it waits.
        """
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

    def test_a_process_that_hangs_in_c_is_ended(self, tmp_path) -> None:
        """A process that hangs in C code, which no exception interrupts, is ended."""
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
