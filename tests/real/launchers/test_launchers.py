"""Test that ranks of real launchers make one run: Lightning, where rank 0 starts the others,
accelerate, torch's spawn, and MPICH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run

LIGHTNING = """
import sys
import lightning as L, torch, stepprof

def begin():
    stepprof.init({"steps": "1", "output_dir": "runs", "ranks": "all", "backend": "null"})

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def setup(self, stage):
        if "setup" in sys.argv:
            begin()
    def training_step(self, batch, number):
        with stepprof.profile_step(self.global_step, role="actor"), stepprof.region("loss"):
            return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def main():
    if "main" in sys.argv:
        begin()
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=1))
    stepprof.shutdown()

if __name__ == "__main__":
    main()
"""
ACCELERATE = """
import sys
import accelerate, torch, stepprof

def main():
    if "main" in sys.argv:
        stepprof.init({"steps": "1", "output_dir": "runs", "ranks": "all", "backend": "null"})
    accelerator = accelerate.Accelerator(cpu=True)
    if "main" not in sys.argv:
        stepprof.init({"steps": "1", "output_dir": "runs", "ranks": "all", "backend": "null"})
    assert accelerator.num_processes == 2
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    for step in range(3):
        with stepprof.profile_step(step, role="actor"):
            accelerator.backward(model(torch.ones(1, 4)).sum())
    stepprof.shutdown()
    accelerator.end_training()

if __name__ == "__main__":
    main()
"""


def start(folder, script, *command, before=()):
    """Run a script, check that it succeeds, and return its log."""
    (folder / "train.py").write_text(script)
    ran = subprocess.run(
        [*before, sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def the_run(folder):
    """Return the only run, and check that it has a complete window of each of the two ranks."""
    (run,) = list_runs(folder / "runs")
    manifest = read_step(run, 1)
    assert manifest["findings"] == []
    windows = [(window["rank"], window["world_size"], window["status"]) for window in manifest["windows"]]
    assert windows == [(0, 2, "complete"), (1, 2, "complete")]
    headers = [json.loads(file.read_text().splitlines()[0]) for file in (run / "spans").iterdir()]
    assert {(header["rank"], header["pid"]) for header in headers} >= {
        (window["rank"], window["pid"]) for window in manifest["windows"]
    }
    assert read_run(run)["world_size"] == 2
    assert not [path for path in (folder / "runs").iterdir() if path.name[0] != "." and path != run]
    return run


class TestLightning:
    @pytest.mark.parametrize(
        ("place", "named_by"), [("main", {"process"}), ("setup", {"launcher", "torch.distributed"})]
    )
    def test_two_ranks_are_one_run(self, tmp_path, place, named_by):
        """Rank 1 is a child of rank 0, which has no launcher. Both join one run, and nothing is
        logged, with `init` in either place.
        """
        log = start(tmp_path, LIGHTNING, "train.py", place)
        run = the_run(tmp_path)
        assert "run.divided" not in log
        assert read_run(run)["run_id_from"] in named_by


class TestAccelerate:
    @pytest.mark.parametrize("place", ["main", "accelerator"])
    def test_launch(self, tmp_path, place):
        """Both ranks join one run if `init` runs before the Accelerator exists, and if it runs
        after.
        """
        options = [
            "--multi_gpu",
            "--num_processes=2",
            "--num_machines=1",
            "--mixed_precision=no",
            "--dynamo_backend=no",
        ]
        launch = ["-m", "accelerate.commands.launch", *options, "--main_process_port=0"]
        log = start(tmp_path, ACCELERATE, *launch, "train.py", place)
        the_run(tmp_path)
        assert "run.divided" not in log


SPAWN = """
import os
import torch.multiprocessing as mp

def rank_main(rank):
    import torch.distributed as dist, stepprof
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PORT"]}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    stepprof.init({"steps": "1", "output_dir": "runs", "ranks": "all", "backend": "null"})
    for step in range(3):
        with stepprof.profile_step(step, role="actor"):
            dist.barrier()
    stepprof.shutdown()

if __name__ == "__main__":
    with __import__("socket").create_server(("127.0.0.1", 0)) as free:
        os.environ["PORT"] = str(free.getsockname()[1])
    mp.spawn(rank_main, nprocs=2)
"""


class TestSpawn:
    def test_mp_spawn(self, tmp_path):
        """Both ranks are children of one process that is not a rank. They join one run."""
        log = start(tmp_path, SPAWN, "train.py")
        run = the_run(tmp_path)
        assert "run.divided" not in log
        assert read_run(run)["run_id_from"] in ("launcher", "torch.distributed")


RANK_OF_MPI = """
import stepprof
stepprof.init({"steps": "1", "output_dir": "runs", "ranks": "all", "backend": "null"})
for step in range(3):
    with stepprof.profile_step(step, role="actor"):
        pass
stepprof.shutdown()
"""


class TestMpich:
    def test_mpiexec(self, tmp_path):
        """Both ranks that `mpiexec` starts, without a process group, join one run."""
        mpiexec = Path(sysconfig.get_path("scripts")) / "mpiexec"
        log = start(tmp_path, RANK_OF_MPI, "train.py", before=[str(mpiexec), "-n", "2"])
        run = the_run(tmp_path)
        assert "run.alone" not in log
        assert read_run(run)["run_id_from"] == "launcher"
