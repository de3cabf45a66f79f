"""Asynchronous training: the rollout of the next step runs while the policy learns from the last one.

    python async_rollout.py

Many agents play at once, each a coroutine. An agent has to find a number between 0 and 15; after each guess the game answers
"higher" or "lower". One engine makes all guesses: it answers all waiting requests in one batch. Every reply of the game takes a while, like
a tool call. The update runs in a thread. The intervals of one agent span hundreds of switches between coroutines, and two
steps run at any moment. `bind` assigns each region to its sample and step, wherever it runs.

Step 3 is recorded: its rollout (with the update of step 2, which runs at the same time) and its update.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

import stepprof

STEPS, AGENTS, TURNS, SIZE = 20, 128, 6, 16


def make_policy() -> nn.Module:
    """Map the lowest and the highest possible number to a guess."""
    return nn.Sequential(nn.Linear(2 * SIZE, 64), nn.Tanh(), nn.Linear(64, SIZE))


def encode(bounds: list[tuple[int, int]]) -> Tensor:
    return nn.functional.one_hot(torch.tensor(bounds), SIZE).flatten(1).float()


@dataclass
class Episode:
    bounds: list[tuple[int, int]] = field(default_factory=list)
    guesses: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class Engine:
    """Answer the requests of all agents in batches, with a copy of the policy."""

    def __init__(self, policy: nn.Module) -> None:
        self.policy = make_policy()
        self.version = 0
        self.waiting: list[tuple[tuple[int, int], asyncio.Future[int]]] = []
        self.sync(policy)

    def sync(self, policy: nn.Module) -> None:
        self.policy.load_state_dict(policy.state_dict())
        self.version += 1
        stepprof.mark("weights_synced", version=self.version)

    async def guess(self, bounds: tuple[int, int]) -> int:
        answer = asyncio.get_running_loop().create_future()
        self.waiting.append((bounds, answer))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_later(0.002, self.run_batch)
        return await answer

    @stepprof.region("engine_batch")
    @torch.no_grad()
    def run_batch(self) -> None:
        batch, self.waiting = self.waiting, []
        stepprof.counter("batch_size", len(batch))
        logits = self.policy(encode([bounds for bounds, _ in batch]))
        for (_, answer), guess in zip(batch, torch.multinomial(logits.softmax(-1), 1)[:, 0], strict=True):
            answer.set_result(int(guess))


@stepprof.region
async def play(engine: Engine, secret: int, latency: random.Random) -> Episode:
    episode = Episode()
    low, high = 0, SIZE - 1
    for turn in range(TURNS):
        async with stepprof.region("generate", turn=turn):
            guess = await engine.guess((low, high))
        episode.bounds.append((low, high))
        episode.guesses.append(guess)
        async with stepprof.region("tool_call", turn=turn):
            await asyncio.sleep(latency.uniform(0.001, 0.02))
        before = high - low + 1
        if guess <= secret:
            low = max(low, guess + (guess < secret))
        if guess >= secret:
            high = min(high, guess - (guess > secret))
        episode.rewards.append(1 - (high - low) / before)
        if guess == secret:
            break
    return episode


async def rollout(engine: Engine, step: int) -> list[Episode]:
    dice = random.Random(step)

    async def agent(number: int) -> Episode:
        with stepprof.bind(sample=f"{step}/{number}", step=step):
            return await play(engine, dice.randrange(SIZE), dice)

    async with stepprof.profile_step(step, role="rollout", version=engine.version):
        return await asyncio.gather(*(agent(number) for number in range(AGENTS)))


def update(policy: nn.Module, optimizer: torch.optim.Optimizer, step: int, episodes: list[Episode]) -> float:
    """Update by REINFORCE: the reward of a guess is the share of numbers that it ruled out. Return the mean number of turns."""
    with stepprof.profile_step(step, role="actor"):
        rewards = torch.tensor([reward for episode in episodes for reward in episode.rewards])
        advantages = (rewards - rewards.mean()) / rewards.std()
        guesses = torch.tensor([guess for episode in episodes for guess in episode.guesses])
        states = encode([bounds for episode in episodes for bounds in episode.bounds])
        with stepprof.region("forward_backward", rows=len(states)):
            log_probs = policy(states).log_softmax(-1).gather(-1, guesses[:, None])[:, 0]
            optimizer.zero_grad()
            (-log_probs * advantages).mean().backward()
        optimizer.step()
        turns = len(guesses) / len(episodes)
        stepprof.counter("turns", turns)
        return turns


async def main() -> None:
    torch.manual_seed(0)
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.03)
    stepprof.init({"steps": "3"})
    engine = Engine(policy)
    coming = asyncio.create_task(rollout(engine, 1))
    for step in range(1, STEPS + 1):
        episodes = await coming
        if step < STEPS:
            coming = asyncio.create_task(rollout(engine, step + 1))  # with the policy of the previous step
        turns = await asyncio.to_thread(update, policy, optimizer, step, episodes)
        engine.sync(policy)
        print(f"step {step:2d}  turns {turns:.2f}  {stepprof.state()}")
    stepprof.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
