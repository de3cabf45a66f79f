#!/usr/bin/env bash
# Lightning 2.6.6, torch 2.13.0: `PyTorchProfiler` with its default schedule (wait 1, warm-up 1, active 3), in a fit with and without validation.
# Guess:   the trace of the training has three batches, from the third one on, either way.
# Seen:    without validation, that. With validation the sanity check before the training has used up wait and warm-up: the training's file has five
#          batches, from the very first one on, and two steps of one number (`ProfilerStep#2`).
# Matters: first batches are slow. The same option on the same model gives a capture of warm batches or of cold ones, depending on the validation
#          loader, and tools that group by `ProfilerStep` add two different steps together.
set -euo pipefail
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
python3 -m venv env
env/bin/pip install --quiet torch==2.13.0 lightning==2.6.6 numpy
cat >job.py <<'PY'
import glob
import json

import lightning as L
import torch
from lightning.pytorch.profilers import PyTorchProfiler


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.first = None

    def training_step(self, batch, number):
        with torch.profiler.record_function(f"batch {number}"):
            return self.layer(batch).mean()

    def validation_step(self, batch, number):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def captured(validates):
    """Return the batches and the step numbers of the training's file."""
    folder = f"validates-{validates}"
    loader = torch.utils.data.DataLoader(torch.randn(60, 4), batch_size=2)
    short = torch.utils.data.DataLoader(torch.randn(10, 4), batch_size=2)
    trainer = L.Trainer(
        max_steps=12,
        accelerator="cpu",
        profiler=PyTorchProfiler(dirpath=folder, filename="p"),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader, short if validates else None)
    (path,) = glob.glob(f"{folder}/*training_step*.json")
    with open(path) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    return sorted(n for n in names if n.startswith("batch ")), sorted(n for n in names if n.startswith("ProfilerStep#"))


without, with_ = captured(False), captured(True)
print("without validation:", *without)
print("with validation:   ", *with_)
assert without == (["batch 2", "batch 3", "batch 4"], ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]), without
assert with_[0] == [f"batch {number}" for number in range(5)], with_
assert with_[1].count("ProfilerStep#2") == 2, with_
PY
env/bin/python job.py 2>/dev/null
