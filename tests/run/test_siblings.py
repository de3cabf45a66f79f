"""Processes of one parent that each count as alone: one warning, and only for the same command."""

from __future__ import annotations

import os
import subprocess
import sys

JOB = """
import sys, time
import stepprof
stepprof.init({"steps": "1", "backend": "null", "output_dir": "runs"})
open(f"begun-{sys.argv[1]}", "w").close()
sys.stdin.read()
"""


def start(folder, number, *arguments, **environ):
    """Start a process, and wait until its session has begun."""
    (folder / "job.py").write_text(JOB)
    process = subprocess.Popen(
        [sys.executable, "job.py", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(folder.glob("runs/*/status/*.json"))) < number:
        assert process.poll() is None
    return process


def warnings(processes):
    """End the processes, and return how many of them have logged the warning."""
    return sum("each record as the only one" in each.communicate(timeout=200)[1] for each in processes)


class TestIsSecondOfMany:
    def test_ranks_of_an_unknown_launcher(self, tmp_path):
        """Three processes of one parent with the same command are reported once."""
        assert warnings([start(tmp_path, number, "x") for number in (1, 2, 3)]) == 1

    def test_different_jobs_of_a_shell(self, tmp_path):
        """Jobs with other arguments, and ranks that a launcher has numbered, are no such ranks."""
        jobs = [start(tmp_path, number, str(number)) for number in (1, 2)]
        jobs.append(start(tmp_path, 3, "2", STEPPROF_RUN_ID="named"))
        assert warnings(jobs) == 0
