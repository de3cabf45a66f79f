"""Workers of the packages that are copies of `multiprocessing`: `multiprocess` (of `datasets`), and `billiard`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

POOL = """
import importlib, sys
import stepprof
stepprof.init({"steps": "2", "backend": "null", "output_dir": "runs"})

def square(number):
    with stepprof.region("square"):
        print(number * number)

if __name__ == "__main__":
    context = importlib.import_module(sys.argv[1]).get_context("spawn")
    for step in (1, 2):
        with stepprof.profile_step(step):
            worker = context.Process(target=square, args=(step,))
            worker.start()
            worker.join()
    stepprof.shutdown()
"""
RANKS = """
import importlib, sys

def train(rank):
    import stepprof
    config = {"steps": "2", "ranks": "all", "backend": "null", "output_dir": "runs"}
    stepprof.init(config, rank=rank, world_size=2, run_id="job")
    for step in (1, 2):
        with stepprof.profile_step(step), stepprof.region("forward"):
            print(rank * 10 + step)

if __name__ == "__main__":
    context = importlib.import_module(sys.argv[1]).get_context("fork")
    for rank in range(2):
        worker = context.Process(target=train, args=(rank,))
        worker.start()
        worker.join()
"""


def ran(folder, script, package):
    """Run a script, check that it succeeds without a word on stderr, and return its output."""
    (folder / "job.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "job.py", package],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "never entered" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("package", ["multiprocess", "billiard"])
class TestPackages:
    def test_spawned_workers_get_no_run(self, tmp_path, package) -> None:
        """They import the main module again, which calls `init`. The job has one run, with its step."""
        assert ran(tmp_path, POOL, package) == ["1", "4"]
        [run] = (tmp_path / "runs").glob("*/run.json")
        assert [path.name for path in run.parent.glob("step-*")] == ["step-000002"]

    def test_ranks_without_shutdown(self, tmp_path, package) -> None:
        """Their last spans are written, although they leave past `atexit`."""
        assert ran(tmp_path, RANKS, package) == ["1", "2", "11", "12"]
        lines = [
            json.loads(line)
            for path in (tmp_path / "runs" / "job" / "spans").glob("rank-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        assert sorted(line["step"] for line in lines if line["kind"] == "region") == [1, 1, 2, 2]
