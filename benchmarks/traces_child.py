"""One rank of a real training loop that stepprof records: ``python -m benchmarks.traces_child``, under torchrun.

DistributedDataParallel over gloo, a reference's forward and the actor's update per iteration, windows of two roles and regions inside them, a short rollout of samples as
coroutines: the kinds of events of a merged timeline.
"""

from __future__ import annotations

import argparse
import asyncio
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import stepprof

STEP = 2
EVENTS_PER_ITERATION = 4_400
"""The events that torch and stepprof write for one iteration in both roles, measured with torch 2.13."""


class Block(nn.Module):
    """A small attention block with many operations of a few microseconds each, as in a launch-bound
    step.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm, self.feed = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the attention, then the feed-forward layers."""
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(self.norm(x))


async def rollout(samples: int, seed: int) -> None:
    """Run samples concurrently, each with several turns of generation and a tool call, and a
    reward.
    """
    chance = random.Random(seed)

    async def play(number: int, turns: int) -> None:
        with stepprof.bind(sample=f"{STEP}/{number}"):
            for turn in range(turns):
                async with stepprof.region("generate", turn=turn):
                    await asyncio.sleep(chance.uniform(0.001, 0.004))
                async with stepprof.region("tool_call"):
                    await asyncio.sleep(0.001)
            with stepprof.region("reward"):
                stepprof.counter("reward", chance.random())

    await asyncio.gather(*(play(number, chance.randint(1, 6)) for number in range(samples)))


def main() -> None:
    """Train, and record one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--output-dir", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(*(Block(32) for _ in range(4))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    iterations = max(1, given.events // EVENTS_PER_ITERATION)
    stepprof.init(
        {
            "output_dir": given.output_dir,
            "steps": str(STEP),
            "ranks": "all",
            "max_bytes": "64GiB",
            "torch": {"activities": ["cpu"], "record_shapes": True},
        },
        rank=rank,
        world_size=dist.get_world_size(),
    )
    for step in range(1, STEP + 2):
        with stepprof.profile_step(step, role="rollout"):
            asyncio.run(rollout(16, rank))
        with stepprof.profile_step(step, role="ref"), torch.no_grad():
            for number in range(iterations if step == STEP else 1):
                with stepprof.region("log_probs", batch=number):
                    model.module(torch.randn(2, 8, 32))
        dist.barrier()
        with stepprof.profile_step(step, role="actor"):
            for number in range(iterations if step == STEP else 1):
                with stepprof.region("mini_batch", number=number):
                    loss = model(torch.randn(2, 8, 32)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        stepprof.mark("policy_updated", step=step)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
