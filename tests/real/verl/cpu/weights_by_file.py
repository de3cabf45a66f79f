"""Provide a checkpoint engine of verl for CPUs: the trainer sends weights to separate replicas
through a file.

verl imports it because `checkpoint_engine.custom_backend_module` names it. verl's own engines for
separate replicas need CUDA, an NPU or RDMA.
"""

import asyncio
import os
from pathlib import Path

import torch
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry


@CheckpointEngineRegistry.register("file")
class WeightsByFile(CheckpointEngine):
    """The first rank writes the file, and every replica reads it."""

    def __init__(self, bucket_size, is_master=False):
        self.folder = Path(os.environ["WORK"]) / "weights"
        self.rank = None

    def prepare(self):
        self.folder.mkdir(exist_ok=True)
        return {}

    @classmethod
    def build_topology(cls, actor_wg_world_size, rollout_world_size, metadata):
        return {"rank": list(range(actor_wg_world_size))}, {"rank": [-1] * rollout_world_size}

    def init_process_group(self, rank):
        self.rank = rank

    def finalize(self):
        return

    async def send_weights(self, weights, global_steps=None):
        kept = [
            (name, weight.detach().cpu().clone()) for name, weight in weights
        ]  # every rank takes part in gathering
        if self.rank == 0:
            path = self.folder / f"{global_steps}.pt"
            torch.save(kept, path.with_suffix(".begun"))
            path.with_suffix(".begun").rename(path)

    async def receive_weights(self, global_steps=None):
        path = self.folder / f"{global_steps}.pt"
        while not path.exists():
            await asyncio.sleep(0.05)
        for each in torch.load(path):
            yield each
