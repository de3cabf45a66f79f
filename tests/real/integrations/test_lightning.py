"""Test the real Lightning and Fabric through their entry points, and accelerate. The jobs do not
mention stepprof.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run, steps
from stepprof.run.spans import read_spans

pytestmark = pytest.mark.timeout(500)

TRAINER = """
import json, sys
import lightning as L, torch

torch.manual_seed(0)

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        if "fail" in sys.argv and number == 3:
            raise RuntimeError("out of luck")
        return self.layer(batch).sum()
    def validation_step(self, batch, number):
        self.layer(batch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def main():
    data = torch.utils.data.DataLoader(torch.rand(16, 4), batch_size=2)
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, val_check_interval=4, num_sanity_val_steps=1,
    )
    module = Module()
    trainer.fit(module, data, data)
    print(trainer.global_step, module.layer.weight.tolist())

if __name__ == "__main__":
    main()
"""
MANUAL = """
import sys
import lightning as L, torch

kind = sys.argv[1]

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layer = torch.nn.Linear(4, 1)
        self.stepped = 0
    def training_step(self, batch, number):
        optimizers = self.optimizers(use_pl_optimizer=kind != "raw")
        if kind == "phases":  # one after the other
            optimizers = optimizers[:1] if number < 4 else optimizers[1:]
        if kind == "accumulating" and number % 2 == 0:
            optimizers = []
        self.stepped += bool(optimizers)
        for optimizer in optimizers:
            optimizer.zero_grad()
            self.manual_backward(self.layer(batch).sum())
            optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

def fit(epochs, path=None):
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=epochs, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.rand(16, 4), batch_size=2), ckpt_path=path)
    return trainer

module = Module()
trainer = fit(1)
if kind == "resumed":
    trainer.save_checkpoint("saved.ckpt")
    fit(2, "saved.ckpt")
assert not any(each._optimizer_step_post_hooks for each in trainer.optimizers)
print(module.stepped)
"""
OWN_INIT = """
import sys
import lightning as L, stepprof, torch

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

if __name__ == "__main__":
    stepprof.init()
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy=sys.argv[1], max_steps=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=1))
"""
FABRIC = """
import torch
from lightning.fabric import Fabric
torch.manual_seed(0)
fabric = Fabric(accelerator="cpu")
fabric.launch()
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
before = model.weight.detach().clone()
for _ in range(4):
    for _ in range(2):
        fabric.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    optimizer.zero_grad()
torch.testing.assert_close(model.weight.detach(), before - 4 * 0.1 * 2)
"""
FABRIC_RANKS = """
import torch
from lightning.fabric import Fabric

def train(fabric):
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(4):
        fabric.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    Fabric(accelerator="cpu", devices=2, strategy="ddp_spawn").launch(train)
"""
FABRIC_GAN = """
import sys
import torch
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu")
fabric.launch()
model = torch.nn.Linear(4, 1)
both = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
if sys.argv[1] == "raw":
    model = fabric.setup(model)
else:
    model, *both = fabric.setup(model, *both)
for optimizers in [both] * 4 + [both[1:]] * 5:
    for optimizer in optimizers:
        fabric.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
ACCELERATE = """
import torch
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
WATCH
before = model.weight.detach().clone()
for _ in range(8):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
torch.testing.assert_close(model.weight.detach(), before - 4 * 0.1)
"""
ACCELERATE_GAN = """
import sys, torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
both = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
if sys.argv[1] == "raw":
    model = accelerator.prepare(model)
else:
    model, *both = accelerator.prepare(model, *both)
for optimizers in [both] * 4 + [both[1:]] * 5:
    for optimizer in optimizers:
        accelerator.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
SWITCHED = {"STEPPROF_STEPS": "2", "STEPPROF_BACKEND": "null", "STEPPROF_OUTPUT_DIR": "runs"}


@pytest.fixture
def job(tmp_path):
    """Return a function that runs a script, and returns its process and its output."""

    def run(script, *arguments, launcher=(), status=0, **variables):
        (tmp_path / "job.py").write_text(script)
        done = subprocess.run(
            [sys.executable, *launcher, *([] if not launcher else [sys.executable]), "job.py", *arguments],
            cwd=tmp_path,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done

    return run


def windows(folder, step=2):
    """Return role and status of the windows of a step."""
    (run,) = list_runs(folder / "runs")
    return sorted((each["role"] or "step", each["status"]) for each in read_step(run, step)["windows"])


def numbers(folder):
    """Return the numbers of the steps that have a window, in order. A step that was begun at the end of the job may be the last."""
    (run,) = list_runs(folder / "runs")
    return [span["step"] for span in read_spans(run) if span.get("kind") == "window"]


def regions(folder, step=2):
    """Return the names of the regions of a step."""
    (run,) = list_runs(folder / "runs")
    return {
        span["name"] for span in read_spans(run) if span.get("kind") == "region" and span.get("step") == step
    }


class TestTrainer:
    @pytest.mark.oldest
    def test_the_variable_alone(self, job, tmp_path) -> None:
        """Two batches are one step, and the validation after step 2 has the role eval. The output
        of the job is the same.
        """
        plain, recorded = job(TRAINER), job(TRAINER, **SWITCHED)
        assert plain.stdout == recorded.stdout
        assert windows(tmp_path) == [("eval", "joined"), ("step", "complete")]
        assert {"training_step", "backward", "optimizer_step", "fetch_data"} <= regions(tmp_path)

    def test_a_job_that_fails(self, job, tmp_path) -> None:
        """The exception ends the job as without stepprof, and is in the manifest of the step."""
        done = job(TRAINER, "fail", status=1, **SWITCHED)
        assert "RuntimeError: out of luck" in done.stderr
        (run,) = list_runs(tmp_path / "runs")
        (window,) = read_step(run, 2)["windows"]
        assert "out of luck" in window["body_error"]

    def test_callback_and_profiler_record_in_a_session_of_the_job(self, job, tmp_path) -> None:
        """The job starts its own session and uses the callback and the profiler. Both record."""
        script = TRAINER.replace(
            "enable_checkpointing=False,",
            "enable_checkpointing=False, callbacks=[ours.StepprofCallback()], profiler=ours.StepprofProfiler(),",
        ).replace(
            "import json, sys",
            "import json, sys, stepprof\nfrom stepprof.integrations import lightning as ours",
        )
        config = {"steps": "2", "backend": "null", "output_dir": "runs"}
        job(script.replace("def main():", f"def main():\n    stepprof.init({json.dumps(config)})"))
        assert windows(tmp_path) == [("eval", "joined"), ("step", "complete")]
        assert {"training_step", "backward", "optimizer_step"} <= regions(tmp_path)

    @pytest.mark.parametrize(
        ("kind", "count"), [("gan", 8), ("raw", 8), ("phases", 8), ("accumulating", 4), ("resumed", 16)]
    )
    def test_manual_optimization(self, job, tmp_path, kind, count) -> None:
        """A step is a batch in which an optimizer stepped, however many there are and whether the job uses
        Lightning's wrapper. A resumed job continues the count.
        """
        done = job(MANUAL, kind, **SWITCHED)
        assert done.stdout.split() == [str(count)]
        assert numbers(tmp_path) == list(range(1, count + 1))
        assert windows(tmp_path) == [("step", "complete")]

    @pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
    def test_ranks_of_a_process_that_has_a_session(self, job, tmp_path, strategy) -> None:
        """The process that starts the ranks has called `init` itself, and is no rank. The ranks record into one run."""
        done = job(OWN_INIT, strategy, **SWITCHED, STEPPROF_RANKS="all")
        assert "several runs" not in done.stderr
        [run] = [each for each in list_runs(tmp_path / "runs") if steps(each)]
        found = [(each["rank"], each["status"]) for each in read_step(run, 2)["windows"]]
        assert sorted(found) == [(0, "complete"), (1, "complete")]


class TestFabric:
    @pytest.mark.parametrize("setup", ["whole", "raw"])
    def test_several_optimizers(self, job, tmp_path, setup) -> None:
        """With two optimizers in each batch a batch is a step. In a phase in which the second one steps
        alone, its steps count. The same holds for optimizers that the job does not pass to `setup`.
        """
        job(FABRIC_GAN, setup, **SWITCHED)
        assert numbers(tmp_path) == list(
            range(1, 11)
        )  # 4 of both, 5 of the second one, and one that begins at the end

    @pytest.mark.oldest
    def test_the_variable_alone(self, job, tmp_path) -> None:
        """Each step of the optimizer ends a step. The weights are as computed by hand."""
        job(FABRIC, **SWITCHED)
        assert windows(tmp_path) == [("step", "complete")]
        assert {"backward", "optimizer_step"} <= regions(tmp_path)

    def test_ranks_that_it_spawns(self, job, tmp_path) -> None:
        """Fabric pickles itself for each rank. Both record into one run."""
        job(FABRIC_RANKS, **SWITCHED, STEPPROF_RANKS="all")
        [run] = [each for each in list_runs(tmp_path / "runs") if steps(each)]
        found = [(each["rank"], each["status"]) for each in read_step(run, 2)["windows"]]
        assert sorted(found) == [(0, "complete"), (1, "complete")]


class TestAccelerate:
    @pytest.mark.parametrize("prepared", ["whole", "raw"])
    def test_several_optimizers(self, job, tmp_path, prepared) -> None:
        """With two optimizers in each batch a batch is a step. The same holds for optimizers that the job does not pass to `prepare`."""
        job(
            ACCELERATE_GAN,
            prepared,
            launcher=["-m", "stepprof", "run", "--backend", "null", "--output-dir", "runs", "--"],
        )
        assert numbers(tmp_path) == list(range(1, 11))

    @pytest.mark.oldest
    def test_stepprof_run(self, job, tmp_path) -> None:
        """A step is an optimizer step that synchronises gradients, not one that accumulates them."""
        launcher = (
            "-m",
            "stepprof",
            "run",
            "--steps",
            "2",
            "--backend",
            "null",
            "--output-dir",
            "runs",
            "--",
        )
        job(ACCELERATE.replace("WATCH", ""), launcher=launcher)
        assert windows(tmp_path) == [("step", "complete")]
        (run,) = list_runs(tmp_path / "runs")
        assert steps(run) == [2]
        assert read_run(run)["adapters"]["accelerate"]["status"] == "attached"
        assert {"backward", "optimizer_step"} <= regions(tmp_path)

    def test_watch_records_in_a_session_of_the_job(self, job, tmp_path) -> None:
        """The job starts its own session and calls `watch`. A resumed job continues the count of
        its steps.
        """
        config = {"steps": "12", "backend": "null", "output_dir": "runs"}
        watch = (
            "import stepprof\nfrom stepprof.integrations.accelerate import watch\n"
            f"stepprof.init({json.dumps(config)})\nwatch(accelerator, finished_steps=10)"
        )
        job(ACCELERATE.replace("WATCH", watch))
        assert windows(tmp_path, 12) == [("step", "complete")]
