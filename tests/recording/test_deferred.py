"""Test `init` at module level of a script that starts processes with spawn and forkserver: each imports the script again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepprof.run.runs import find_run

WORKERS = """
import multiprocessing, sys
import stepprof
stepprof.init({"steps": "2", "backend": "null", "output_dir": "runs"})

def square(number):
    with stepprof.region("square"):
        return number * number

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        for step in (1, 2, 3):
            with stepprof.profile_step(step):
                print(pool.map(square, range(3)))
    stepprof.shutdown()
"""
RANKS = """
import multiprocessing, os, sys
import stepprof
stepprof.init({"steps": "2", "ranks": "all", "backend": "null", "output_dir": "runs"}, run_id=sys.argv[2] or None)

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")
    window = stepprof.profile_step(1).start()
    with stepprof.region("forward"):
        pass
    window.stop()
    with stepprof.profile_step(2):
        pass

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ranks = [context.Process(target=train, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(sum(each.exitcode for each in ranks))
"""

LEFT_OPEN = """
import multiprocessing
import stepprof
stepprof.init({"steps": "2-3", "backend": "null", "output_dir": "runs"}, run_id="left-open")

def train():
    stepprof.profile_step(2).start()
    stepprof.profile_step(3).start().stop()

if __name__ == "__main__":
    rank = multiprocessing.get_context("spawn").Process(target=train)
    rank.start()
    rank.join()
"""

LOADERS = """
import multiprocessing
import stepprof, torch
from torch.utils.data import DataLoader, Dataset
stepprof.init({"steps": "1", "backend": "null", "output_dir": "runs"})

class Numbers(Dataset):
    def __len__(self):
        return 4
    @stepprof.region("decode")
    def __getitem__(self, index):
        return torch.tensor(index)

if __name__ == "__main__":
    methods = ("spawn", "forkserver", "fork")
    loaders = [
        DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=method, persistent_workers=True)
        for method in methods
    ]
    for step in (1, 2):
        with stepprof.profile_step(step):
            for batches in [iter(loader) for loader in loaders]:
                print([batch.tolist() for batch in batches])
    stepprof.shutdown()
    # a later process that records no step, as a second job or an evaluation
    stepprof.init({"steps": "1", "backend": "null", "output_dir": "runs"}, run_id="later")
"""


def ran(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.py").write_text(script)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STEPPROF")}
    done = subprocess.run(
        [sys.executable, "job.py", *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
class TestChildren:
    def test_workers_get_no_run(self, tmp_path: Path, method: str) -> None:
        """The workers of a pool write no run and no log line; the job has one run, with its step."""
        done = ran(tmp_path, WORKERS, method)
        assert done.stdout.splitlines() == ["[0, 1, 4]"] * 3
        assert "never entered" not in done.stderr
        [run] = (tmp_path / "runs").glob("*/run.json")
        assert [path.name for path in run.parent.glob("step-*")] == ["step-000002"]
        assert [path.name for path in (run.parent / "status").iterdir()] == ["rank-0.json"]

    def test_ranks_record_into_one_run(self, tmp_path: Path, method: str) -> None:
        """Ranks that such a script starts record from their first window on, with the rank that they have then."""
        ran(tmp_path, RANKS, method, "")
        [step] = (tmp_path / "runs").glob("*/step-000002")
        windows = [json.loads(path.read_text())["windows"][0] for path in (step / "manifest").glob("*.json")]
        assert sorted((window["rank"], window["status"]) for window in windows) == [
            (0, "complete"),
            (1, "complete"),
        ]
        lines = [
            json.loads(line)
            for path in (step.parent / "spans").glob("rank-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        spans = [(line["name"], line["step"]) for line in lines if line.get("kind") in ("window", "region")]
        assert sorted(spans) == sorted([("step", 1), ("forward", 1), ("step", 2)] * 2)


@pytest.mark.torch
def test_workers_of_loaders(tmp_path: Path) -> None:
    """Workers of a `DataLoader` make no run, however they start. A command finds the run with the step among newer ones."""
    done = ran(tmp_path, LOADERS)
    assert done.stdout.splitlines() == ["[[0, 1], [2, 3]]"] * 6
    found = sorted(path.parent for path in (tmp_path / "runs").glob("*/run.json"))
    [recorded] = [path for path in found if path.name != "later"]
    assert [path.name for path in recorded.glob("step-*")] == ["step-000001"]
    assert [path.name for path in (recorded / "status").iterdir()] == ["rank-0.json"]
    assert find_run(tmp_path / "runs") == recorded


def test_the_first_window_is_left_open(tmp_path: Path) -> None:
    """The next `start` closes the window that has started the session, as it closes any other one."""
    ran(tmp_path, LEFT_OPEN)
    found = {
        path.parts[-3]: json.loads(path.read_text())["windows"][0]["status"]
        for path in (tmp_path / "runs").glob("*/step-*/manifest/*.json")
    }
    assert found == {"step-000002": "partial", "step-000003": "complete"}
