"""GRPO on small arithmetic: a complete RL post-training loop that uses stepprof.

Run it alone, on two trainer ranks, or with `stepprof demo`, which records a step of it and shows what was recorded:

    python grpo.py
    STEPPROF_STEPS=2 STEPPROF_RANKS=all torchrun --standalone --nproc-per-node 2 grpo.py

Nothing is downloaded: the file makes a causal language model with random weights and a tokenizer of 16 characters, and reads the sums of
arithmetic.jsonl next to it. There is no supervised warm-up: the model has never seen a digit, and learns from the reward alone.
So the reward gives partial credit (see `reward_of`). With credit for exact answers only, nearly all of the first groups
would score zero and teach nothing.

A loop needs `init`, `profile_step` and, for more detail, `region` of stepprof; search for `stepprof.` below.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import stepprof

PROMPTS_PER_STEP = 128  # over all ranks
GROUP_SIZE = 16  # samples per prompt, whose rewards are compared with each other
RESPONSE_TOKENS = 3  # a digit and the end; one more, so that the model has to learn to end
EPOCHS, MINI_BATCHES = 2, 16  # per update
LEARNING_RATE = 2e-3  # falls to zero over the run
CLIP, KL_WEIGHT, MAX_GRAD_NORM = 0.2, 0.002, 1.0
HELD_OUT = 8  # every 8th problem is never trained on


@dataclass(frozen=True)
class Problem:
    prompt: str
    answer: int


@dataclass(frozen=True)
class Samples:
    """The samples of one rollout: `GROUP_SIZE` rows per problem, prompts padded on the left, responses on the right."""

    problems: Sequence[Problem]
    tokens: Tensor  # [rows, prompt + response]
    attention: Tensor  # the same shape: 1 where there is a token
    prompt_width: int

    @property
    def responses(self) -> Tensor:
        return self.tokens[:, self.prompt_width :]

    @property
    def mask(self) -> Tensor:
        return self.attention[:, self.prompt_width :].float()


def read_problems(path: Path) -> tuple[list[Problem], list[Problem]]:
    """Return the problems to train on, and the held-out ones."""
    problems = [Problem(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    held_out = problems[HELD_OUT - 1 :: HELD_OUT]
    return [problem for problem in problems if problem not in held_out], held_out


def make_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<eos>", *"0123456789+-*="])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def make_policy(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


@stepprof.region
@torch.no_grad()
def generate(
    policy: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    group_size: int = GROUP_SIZE,
    greedy: bool = False,
) -> Samples:
    """Answer every problem `group_size` times, one token after the other, with a KV cache."""
    prompts = [problem.prompt for problem in problems for _ in range(group_size)]
    encoded = tokenizer(prompts, return_tensors="pt", padding=True)
    tokens, attention = encoded["input_ids"], encoded["attention_mask"]
    prompt_width = tokens.shape[1]
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    cache = DynamicCache()
    fresh = tokens
    for position in range(RESPONSE_TOKENS):
        with stepprof.region("prefill" if position == 0 else "decode", token=position, rows=len(prompts)):
            output = policy(input_ids=fresh, attention_mask=attention, past_key_values=cache, use_cache=True)
            logits = output.logits[:, -1]
            logits[:, tokenizer.pad_token_id] = -torch.inf
            drawn = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1)[:, 0]
        fresh = drawn.where(~ended, tokenizer.pad_token_id)[:, None]
        tokens = torch.cat([tokens, fresh], dim=1)
        attention = torch.cat([attention, (~ended).long()[:, None]], dim=1)
        ended |= drawn == tokenizer.eos_token_id
        if ended.all():
            break
    return Samples(problems, tokens, attention, prompt_width)


def reward_of(problem: Problem, response: str) -> float:
    """Return 1 for the answer; 0.2 to 0.6 for another number, the nearer the better; 0.1 for a digit at the start.

    >>> [round(reward_of(Problem("3+4=", 7), response), 2) for response in ("+<eos>", "5+=", "5<eos>", "7<eos>")]
    [0.0, 0.1, 0.52, 1.0]
    """
    text, end, _ = response.partition("<eos>")
    if not (end and text.isdigit()):
        return 0.1 * text[:1].isdigit()
    distance = abs(int(text) - problem.answer)
    return 1.0 if distance == 0 else 0.2 + 0.4 * max(0.0, 1 - distance / 10)


@stepprof.region
def grade(problem: Problem, responses: Sequence[str]) -> list[float]:
    return [reward_of(problem, response) for response in responses]


@stepprof.region
def compute_rewards(step: int, samples: Samples, tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return the rewards as [problems, group]."""
    texts = tokenizer.batch_decode(samples.responses)
    rewards = []
    for number, problem in enumerate(samples.problems):
        with stepprof.bind(sample=f"{step}/{number}"):  # every region below belongs to this sample
            rewards.append(grade(problem, texts[number * GROUP_SIZE : (number + 1) * GROUP_SIZE]))
    return torch.tensor(rewards)


@stepprof.region
def compute_advantages(rewards: Tensor) -> Tensor:
    """Return how much better than its group each sample is, in the group's standard deviations."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return (centred / (rewards.std(dim=1, keepdim=True) + 1e-4)).flatten()


def token_log_probs(model: nn.Module, tokens: Tensor, attention: Tensor, prompt_width: int) -> Tensor:
    """Return the log-probability of every response token: [rows, response]."""
    logits = model(input_ids=tokens, attention_mask=attention, use_cache=False).logits
    log_probs = logits[:, prompt_width - 1 : -1].log_softmax(-1)
    return log_probs.gather(-1, tokens[:, prompt_width:, None])[..., 0]


@stepprof.region
@torch.no_grad()
def compute_log_probs(model: nn.Module, samples: Samples) -> Tensor:
    return token_log_probs(model, samples.tokens, samples.attention, samples.prompt_width)


@dataclass(frozen=True)
class Experience:
    """The input of the update: samples, and the figures computed from them."""

    samples: Samples
    advantages: Tensor  # [rows]
    old: Tensor  # log-probabilities under the policy that sampled them: [rows, response]
    reference: Tensor  # … and under the frozen reference


def policy_loss(trainer: nn.Module, experience: Experience, rows: Tensor) -> tuple[Tensor, float]:
    """Return the clipped policy gradient with a KL penalty, over the tokens of these rows, and their mean KL."""
    samples = experience.samples
    mask, advantage = samples.mask[rows], experience.advantages[rows, None]
    new = token_log_probs(trainer, samples.tokens[rows], samples.attention[rows], samples.prompt_width)
    ratio = (new - experience.old[rows]).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    gap = experience.reference[rows] - new
    kl = gap.exp() - gap - 1
    loss = ((KL_WEIGHT * kl - gain) * mask).sum() / mask.sum()
    return loss, float((kl.detach() * mask).sum() / mask.sum())


@stepprof.region
def update_policy(trainer: nn.Module, optimizer: torch.optim.Optimizer, experience: Experience) -> float:
    """Learn from the experience in mini-batches. Return the mean KL to the reference."""
    divergences = []
    for epoch in range(EPOCHS):
        for number, rows in enumerate(torch.randperm(len(experience.advantages)).chunk(MINI_BATCHES)):
            with stepprof.region("mini_batch", epoch=epoch, number=number, rows=len(rows)):
                with stepprof.region("forward"):
                    loss, kl = policy_loss(trainer, experience, rows)
                with stepprof.region("backward"):
                    optimizer.zero_grad()
                    loss.backward()  # DDP averages the gradients of all ranks here
                with stepprof.region("optimizer"):
                    nn.utils.clip_grad_norm_(trainer.parameters(), MAX_GRAD_NORM)
                    optimizer.step()
            divergences.append(kl)
    return sum(divergences) / len(divergences)


def share_correct(
    policy: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]
) -> float:
    """Return the share of problems whose most probable answer is right."""
    answers = generate(policy, tokenizer, problems, group_size=1, greedy=True)
    texts = tokenizer.batch_decode(answers.responses)
    return sum(reward_of(*pair) == 1.0 for pair in zip(problems, texts, strict=True)) / len(problems)


def mean_over_ranks(*values: float) -> list[float]:
    totals = torch.tensor(values)
    if dist.is_initialized():
        dist.all_reduce(totals)
        totals /= dist.get_world_size()
    return totals.tolist()


def train(steps: int, seed: int, config: str | None) -> None:
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)  # the ranks share this machine's cores
    if world_size > 1:
        dist.init_process_group("gloo")
    stepprof.init(config)

    train_on, held_out = read_problems(Path(__file__).with_name("arithmetic.jsonl"))
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)  # the same weights on every rank, …
    policy = make_policy(tokenizer)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    trainer: nn.Module = DistributedDataParallel(policy) if world_size > 1 else policy
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    torch.manual_seed(seed + 1 + rank)  # … but samples of its own
    shuffle = random.Random(seed)

    def log(text: str) -> None:
        if rank == 0:
            print(text, flush=True)

    def log_held_out(when: str) -> None:
        correct = share_correct(policy, tokenizer, held_out)
        log(f"{when}: {correct:.0%} of {len(held_out)} held-out sums are right")

    log_held_out("before training")
    for step in range(1, steps + 1):
        began = time.perf_counter()
        with stepprof.profile_step(step):
            problems = shuffle.sample(train_on, PROMPTS_PER_STEP)[rank::world_size]

            with stepprof.profile_step(step, role="rollout"):
                samples = generate(policy, tokenizer, problems)

            with stepprof.profile_step(step, role="reward"):
                rewards = compute_rewards(step, samples, tokenizer)
                advantages = compute_advantages(rewards)

            with stepprof.profile_step(step, role="ref"):
                reference_log_probs = compute_log_probs(reference, samples)

            with stepprof.profile_step(step, role="actor"):
                old_log_probs = compute_log_probs(policy, samples)
                experience = Experience(samples, advantages, old_log_probs, reference_log_probs)
                kl = update_policy(trainer, optimizer, experience)
                decay.step()
            stepprof.mark("policy_updated", version=step)

            right = (rewards == 1.0).float()
            reward, correct, kl = mean_over_ranks(float(rewards.mean()), float(right.mean()), kl)
            stepprof.counter("reward", reward)
            log(
                f"step {step:3d}/{steps}  reward {reward:.3f}  correct {correct:4.0%}  kl {kl:6.2f}"
                f"  {time.perf_counter() - began:5.2f} s  {stepprof.state()}"
            )
    log_held_out("after training")

    stepprof.shutdown()
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GRPO on small arithmetic, recorded by stepprof.")
    parser.add_argument("--train-steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--config", help="a stepprof.toml; by default the STEPPROF_* environment variables count"
    )
    arguments = parser.parse_args()
    train(arguments.train_steps, arguments.seed, arguments.config)
