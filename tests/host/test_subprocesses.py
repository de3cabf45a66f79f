"""A program with limits on its time and its output."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from stepprof.host import subprocesses
from stepprof.host.subprocesses import run_bounded


class TestBoundedProgram:
    def run(self, *argv, seconds=20.0):
        return run_bounded(argv, os.environ, seconds)

    def test_exit_status_and_output(self) -> None:
        """The exit status and the output are returned, also if the program
        closes its output before it ends.
        """
        ended = self.run("sh", "-c", "echo a; echo b >&2; exit 5")
        assert (ended.status, ended.killed, ended.output) == (5, None, "a\nb\n")
        assert self.run("sh", "-c", "echo a; exec >&- 2>&-; sleep 0.2; exit 6").status == 6

    def test_left_over_children_are_ended(self, tmp_path) -> None:
        """Children that the program leaves behind are killed, although they hold its output open."""
        ended = self.run("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid")
        assert (ended.status, ended.killed) == (0, None)
        _gone(int((tmp_path / "pid").read_text()))

    def test_a_tail_of_much(self) -> None:
        """Of a long output the last part is kept completely."""
        ended = self.run(sys.executable, "-c", "import sys\nfor n in range(300000): print(n)")
        assert ended.output.endswith("299998\n299999\n")
        assert len(ended.output) == subprocesses.TAIL

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

    def test_a_hanging_program_is_killed_with_its_children(self, tmp_path) -> None:
        """A program that does not end in time is killed with its children, and its output is kept."""
        ended = self.run("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid; echo waiting; wait", seconds=3.0)
        assert (ended.status, ended.killed, ended.output) == (-9, "it did not end within 3 s", "waiting\n")
        _gone(int((tmp_path / "pid").read_text()))

    def test_an_output_without_end(self) -> None:
        """Of a program that prints without end, the last 2,000 characters are kept."""
        ended = self.run("yes", "x" * 50, seconds=0.5)
        assert (len(ended.output), ended.killed) == (2000, "it did not end within 0.5 s")


def _gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} lives")
