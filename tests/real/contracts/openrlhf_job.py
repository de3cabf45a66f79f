"""Run a PPO job of OpenRLHF with the real code of its driver: trainer, rollout, experience, groups.
Models and engines are small actors.

It does not mention stepprof.
"""

from __future__ import annotations

import os
from types import SimpleNamespace as Options

import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ray.launcher import RayActorGroup
from openrlhf.utils.deepspeed import DeepspeedStrategy

STEPS = 3


@ray.remote(num_cpus=0)
class Model:
    """Stands for the actors with a model, which need DeepSpeed and a GPU."""

    def __init__(self, world_size, rank, address, port):
        os.environ.update(WORLD_SIZE=str(world_size), RANK=str(rank), LOCAL_RANK="0")

    def execute_batch(self, method, data, start, end):
        return (
            [torch.zeros(len(each), each.shape[1] - 1) for each in data["sequences"]]
            if method == "forward"
            else []
        )

    def fit(self, **_):
        return {"loss": 0.0}

    def broadcast_to_vllm(self):
        return None

    def save_checkpoint(self, **_):
        return None


@ray.remote(num_cpus=0)
class Engine:
    """Stands for the actor with a vLLM engine."""

    def get_num_unfinished_requests(self):
        return 0

    def generate_responses(self, *, prompt, label, num_samples, **_):
        answer = {
            "prompt": prompt,
            "label": label,
            "observation_tokens": [1, 2, 3, 4, 5],
            "action_ranges": [(2, 5)],
            "reward": 1.0,
            "scores": 1.0,
            "rollout_log_probs": None,
        }
        return [answer] * num_samples


def options():
    """Return the options of OpenRLHF that its driver reads."""
    return Options(
        actor=Options(num_nodes=1, num_gpus_per_node=1),
        algo=Options(
            kl=Options(target=None, init_coef=0.1, use_loss=False, estimator="k1"),
            advantage=Options(estimator="reinforce", gamma=1.0, no_std_norm=True, is_correction_level="off"),
            dynamic_filtering_enable=False,
        ),
        ckpt=Options(path="none", load_enable=False, save_steps=-1, best_metric_key=""),
        critic=Options(freezing_steps=-1),
        data=Options(
            prompt_dataset="p", prompt_probs=None, max_samples=STEPS, prompt_split="train",
            input_template=None, dataloader_num_workers=0, disable_fast_tokenizer=False,
        ),
        ds=Options(ring_attn_size=1, tensor_parallel_size=1, enable_sleep=False),
        eval=Options(dataset="e", split="test", steps=1, temperature=1.0, n_samples_per_prompt=1),
        logger=Options(logging_steps=1, wandb=Options(key=None), tensorboard_dir=None),
        reward=Options(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None),
        rollout=Options(batch_size=1, n_samples_per_prompt=1, micro_batch_size=1, vllm_generate_batch_size=None),
        train=Options(
            seed=1, batch_size=1, num_episodes=1, max_epochs=1, dynamic_batch_enable=False,
            colocate_all=False, colocate_actor_ref=False, colocate_critic_reward=False,
        ),
        vllm=Options(enable_sleep=False),
    )  # fmt: skip


if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    models, references = (RayActorGroup(1, 1, Model, num_gpus_per_actor=0) for _ in range(2))
    engines = [Engine.remote()]
    trainer = PPOTrainer.remote(
        "model", DeepspeedStrategy(options()), models, None, None, references, engines
    )
    ray.get(trainer.fit.remote())
    print("trained", ray.get(trainer.get_max_steps.remote()))
    ray.shutdown()
