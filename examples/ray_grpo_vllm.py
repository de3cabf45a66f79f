"""GRPO under Ray with a real rollout engine: a driver, two trainer ranks, and vLLM or SGLang. stepprof records steps of all of them.

    python ray_grpo_vllm.py --steps 4 --record 2-3
    python ray_grpo_vllm.py --engine sglang
    python ray_grpo_vllm.py --async

Everything runs on the CPU, and nothing is downloaded: a Llama with random weights, and tokenizer, reward and arithmetic from
grpo.py. The engine (ray_rollouts.py) samples a group of answers to each prompt, with their log-probabilities. The driver grades
them. The trainers, DDP over gloo, update the policy. The engine loads the new weights. `gap` in the log is the difference between
the engine's log-probabilities and the policy's at the start of the update: a rounding error, if the engine has the same weights.
With `--async` the engine generates for step n + 1 while the trainers learn from step n. Then it is one update behind. The ratio
in the loss, which uses the engine's log-probabilities, corrects for that.

To see what stepprof needs, search for `stepprof.` below. The actors do not use it, except for the regions that they name.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from grpo import Problem, make_tokenizer, read_problems, reward_of, token_log_probs
from ray_rollouts import ROLLOUTS, Sample
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

import stepprof

TRAINERS = 2
PROMPTS_PER_STEP, GROUP_SIZE = 32, 12
RESPONSE_TOKENS = 3  # a digit and the end; one more, so that the model has to learn to end
CONTEXT = 32  # tokens of a prompt and its response, at most
EPOCHS, MINI_BATCHES = 2, 6  # per update
LEARNING_RATE, CLIP, MAX_GRAD_NORM = 2e-3, 0.2, 1.0
ENVIRONMENT = {  # of the actors: offline, quiet, on the CPU
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "SGLANG_USE_CPU_ENGINE": "1",
}


class Trainer:
    """A rank of the policy's training, in an actor."""

    def __init__(self, rank: int, model: str, rendezvous: str, arguments: argparse.Namespace) -> None:
        torch.set_num_threads(1)  # the ranks share this machine's cores
        torch.manual_seed(arguments.seed + rank)
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=TRAINERS)
        self.policy = LlamaForCausalLM.from_pretrained(model)
        self.trainer = DistributedDataParallel(self.policy)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self.decay = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total_iters=arguments.steps)

    @stepprof.region("update")
    def update(self, samples: Sequence[Sample]) -> float:
        """Learn from this rank's share of the samples. Return the difference between the engine's log-probabilities and the policy's."""
        batch = collate(samples, self.policy.config.pad_token_id)
        with torch.no_grad(), stepprof.region("log_probs", rows=len(samples)):
            policy = token_log_probs(self.policy, batch.tokens, batch.attention, batch.prompt_width)
        for epoch in range(EPOCHS):
            for number, rows in enumerate(torch.randperm(len(samples)).chunk(MINI_BATCHES)):
                with stepprof.region("mini_batch", epoch=epoch, number=number, rows=len(rows)):
                    with stepprof.region("forward"):
                        loss = policy_loss(self.trainer, batch, rows)
                    with stepprof.region("backward"):
                        self.optimizer.zero_grad()
                        loss.backward()  # DDP averages the gradients of all ranks here
                    with stepprof.region("optimizer"):
                        nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRAD_NORM)
                        self.optimizer.step()
        self.decay.step()
        return float(((policy - batch.log_probs).abs() * batch.mask).max())

    @stepprof.region("save")
    def save(self, path: str) -> None:
        self.policy.save_pretrained(path)


@dataclass(frozen=True)
class Batch:
    """Samples as tensors: prompts padded on the left, responses on the right."""

    tokens: Tensor  # [rows, prompt + response]
    attention: Tensor  # the same shape: 1 where there is a token
    log_probs: Tensor  # the engine's: [rows, response]
    advantages: Tensor  # [rows, 1]
    prompt_width: int

    @property
    def mask(self) -> Tensor:
        return self.attention[:, self.prompt_width :].float()


def collate(samples: Sequence[Sample], pad: int) -> Batch:
    width = max(len(sample.prompt) for sample in samples)
    length = max(len(sample.response) for sample in samples)
    tokens = torch.full((len(samples), width + length), pad)
    attention, log_probs = torch.zeros_like(tokens), torch.zeros(len(samples), length)
    for row, sample in enumerate(samples):
        begin, end = width - len(sample.prompt), width + len(sample.response)
        tokens[row, begin:end] = torch.tensor(sample.prompt + sample.response)
        attention[row, begin:end] = 1
        log_probs[row, : end - width] = torch.tensor(sample.log_probs)
    advantages = torch.tensor([[sample.advantage] for sample in samples])
    return Batch(tokens, attention, log_probs, advantages, width)


def policy_loss(trainer: nn.Module, batch: Batch, rows: Tensor) -> Tensor:
    """Return the clipped policy gradient over the response tokens of these rows."""
    new = token_log_probs(trainer, batch.tokens[rows], batch.attention[rows], batch.prompt_width)
    mask, advantages = batch.mask[rows], batch.advantages[rows]
    ratio = (new - batch.log_probs[rows]).exp()
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * mask).sum() / mask.sum()


def make_model(folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int) -> str:
    """Save a Llama with random weights in a folder, from which engine and trainers load it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


class Job:
    """The driver: it decides which actor does what, and when."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.steps, self.folder = arguments.steps, folder
        self.problems, _ = read_problems(Path(__file__).with_name("arithmetic.jsonl"))
        self.shuffle = random.Random(arguments.seed)
        self.tokenizer = make_tokenizer()
        self.version = 0  # of the engine's weights: the last step that they contain

        model, rendezvous = (
            make_model(folder / "model", self.tokenizer, arguments.seed),
            f"file://{folder}/gloo",
        )
        self.rollout = ray.remote(ROLLOUTS[arguments.engine]).remote(model, CONTEXT, str(folder / "traces"))
        start_trainer = ray.remote(Trainer).remote
        self.trainers = [start_trainer(rank, model, rendezvous, arguments) for rank in range(TRAINERS)]
        ray.get([actor.__ray_ready__.remote() for actor in (self.rollout, *self.trainers)])

        stepprof.attach(self.rollout, role="rollout", find="engine")
        stepprof.attach(self.trainers, role="actor", kind="rank")

    def run(self) -> None:
        """One after the other: generate, grade, learn, and load the weights."""
        for step in range(1, self.steps + 1):
            began = time.perf_counter()
            problems = self.draw()
            with stepprof.profile_step(step, role="rollout", version=self.version):
                groups = ray.get(self.generate(problems))
            rewards, gap = self.learn(step, problems, groups)
            self.hand_over(step)
            self.log(step, rewards, gap, time.perf_counter() - began)

    def run_ahead(self) -> None:
        """The engine generates for the next step while the trainers learn from this one: two windows overlap."""
        coming = self.begin_rollout(1)
        for step in range(1, self.steps + 1):
            began = time.perf_counter()
            problems, groups = self.end_rollout(*coming)
            if step > 1:
                self.hand_over(step - 1)
            if step < self.steps:
                coming = self.begin_rollout(step + 1)
            rewards, gap = self.learn(step, problems, groups)
            self.log(step, rewards, gap, time.perf_counter() - began)

    def begin_rollout(self, step: int) -> tuple[Any, list[Problem], ray.ObjectRef]:
        problems = self.draw()
        window = stepprof.profile_step(step, role="rollout", version=self.version).start()
        return window, problems, self.generate(problems)

    def end_rollout(
        self, window: Any, problems: list[Problem], groups: ray.ObjectRef
    ) -> tuple[list[Problem], list[list[Sample]]]:
        try:
            return problems, ray.get(groups)
        finally:
            window.stop()

    def draw(self) -> list[Problem]:
        return self.shuffle.sample(self.problems, PROMPTS_PER_STEP)

    def generate(self, problems: Sequence[Problem]) -> ray.ObjectRef:
        prompts = [self.tokenizer.encode(problem.prompt) for problem in problems]
        return self.rollout.generate.remote(prompts, GROUP_SIZE, RESPONSE_TOKENS)

    def learn(
        self, step: int, problems: Sequence[Problem], groups: Sequence[Sequence[Sample]]
    ) -> tuple[Tensor, float]:
        """Grade the samples, and have each rank learn from its share of the groups. Return the rewards and the gap."""
        with stepprof.profile_step(step, role="reward"):
            rewards = self.grade(problems, groups)
            stepprof.counter("reward", float(rewards.mean()))
            stepprof.counter("response_tokens", sum(len(each.response) for group in groups for each in group))
            centred = rewards - rewards.mean(dim=1, keepdim=True)
            advantages = (centred / (rewards.std(dim=1, keepdim=True) + 1e-4)).tolist()
        samples = [
            [replace(sample, advantage=advantage) for sample, advantage in zip(*group, strict=True)]
            for group in zip(groups, advantages, strict=True)
        ]
        with stepprof.profile_step(step, role="actor"):
            shares = [list(chain.from_iterable(samples[rank::TRAINERS])) for rank in range(TRAINERS)]
            updates = [
                trainer.update.remote(share) for trainer, share in zip(self.trainers, shares, strict=True)
            ]
            gap = max(ray.get(updates))
        return rewards, gap

    @stepprof.region("grade")
    def grade(self, problems: Sequence[Problem], groups: Sequence[Sequence[Sample]]) -> Tensor:
        """Return the rewards as [problems, group]."""
        texts = [self.tokenizer.batch_decode([sample.response for sample in group]) for group in groups]
        return torch.tensor(
            [
                [reward_of(problem, text) for text in answers]
                for problem, answers in zip(problems, texts, strict=True)
            ]
        )

    @stepprof.region("hand_over")
    def hand_over(self, version: int) -> None:
        """Copy the weights from the trainers to the engine, through a folder that both see."""
        path = str(self.folder / f"weights-{version}")
        ray.get(self.trainers[0].save.remote(path))
        ray.get(self.rollout.load_weights.remote(path))
        self.version = version
        stepprof.mark("weights_synced", version=version)

    def log(self, step: int, rewards: Tensor, gap: float, seconds: float) -> None:
        reward, correct = float(rewards.mean()), float((rewards == 1.0).float().mean())
        print(
            f"step {step:3d}/{self.steps}  reward {reward:.3f}  correct {correct:4.0%}  gap {gap:.0e}"
            f"  {seconds:5.2f} s  {stepprof.state()}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="GRPO under Ray with a real engine, recorded by stepprof.")
    parser.add_argument("--engine", choices=sorted(ROLLOUTS), default="vllm")
    parser.add_argument("--async", action="store_true", dest="ahead", help="generate one step ahead")
    parser.add_argument("--steps", type=int, default=4, help="how many to train")
    parser.add_argument("--record", default="2-3", help='the steps to record: "2-3", "every 10", "none"')
    parser.add_argument("--output-dir", default="stepprof-runs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    disable_progress_bar()
    ray.init(
        address="local",  # a Ray instance of its own, whatever else runs on this machine
        num_cpus=1 + TRAINERS,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,  # else the driver prints every library's log of every actor; exceptions of actors arrive here anyway
        runtime_env={"env_vars": ENVIRONMENT},
    )
    session = stepprof.init({"steps": arguments.record, "ranks": "all", "output_dir": arguments.output_dir})
    with tempfile.TemporaryDirectory(prefix="ray-grpo-") as folder:
        job = Job(arguments, Path(folder))
        if arguments.ahead:
            job.run_ahead()
        else:
            job.run()
        stepprof.shutdown()  # while the actors still live: collects their recordings
        ray.get(job.rollout.close.remote())
    ray.shutdown()
    if session.path is not None:
        show(session.path)


def show(run: Path) -> None:
    """Print what was recorded of each step, as `stepprof show` does; write the last one as a timeline, and report where its time went."""
    steps = sorted(int(folder.name.removeprefix("step-")) for folder in run.glob("step-*"))
    for step in steps:
        command("show", run, step)
    for name in ("merge", "report") if steps else ():
        command(name, run, steps[-1])


def command(name: str, run: Path, step: int) -> None:
    print(flush=True)
    subprocess.run([sys.executable, "-m", "stepprof", name, str(run), "--step", str(step)], check=False)


if __name__ == "__main__":
    main()
