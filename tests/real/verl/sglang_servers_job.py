"""The servers of a job of verl, without its trainer: one replica of SGLang, as verl starts it, generates in two steps.

``python sglang_servers_job.py RESULTS`` writes the answers of each step there.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import ray
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.workers.rollout.llm_server import LLMServerManager

import stepprof
from stepprof.integrations.verl_actors import attach_actors

CPU = Path(__file__).parent / "cpu"
ONE_REPLICA = [
    f"actor_rollout_ref.rollout.{each}" for each in ("nnodes=1", "n_gpus_per_node=1", "load_format=auto")
]
PROMPTS = ([5, 6, 7, 8], [9, 10, 11], [12, 13])
SAMPLING = {"max_tokens": 8, "temperature": 0, "logprobs": True}


async def generate(client):
    """Return the tokens of the answer to each prompt, by verl's client."""
    answers = (
        client.generate(str(number), prompt_ids=prompt, sampling_params=dict(SAMPLING))
        for number, prompt in enumerate(PROMPTS)
    )
    return [answer.token_ids for answer in await asyncio.gather(*answers)]


def main(results):
    with initialize_config_dir(str(CPU), version_base=None):
        config = compose("tiny_sglang", ONE_REPLICA)
    started = {
        **OmegaConf.to_container(config.ray_kwargs.ray_init),
        "runtime_env": get_ppo_ray_runtime_env(config),
    }
    ray.init(**started)
    manager = LLMServerManager.create(config)
    stepprof.init()
    rewards = SimpleNamespace(reward_loop_worker_handles=None)
    attach_actors(SimpleNamespace(config=config, llm_server_manager=manager, reward_loop_manager=rewards))
    client, answers = manager.get_client(), {}
    for step in (1, 2):
        with stepprof.profile_step(step, role="rollout"):
            answers[step] = asyncio.run(generate(client))
    stepprof.shutdown()
    Path(results).write_text(json.dumps(answers))
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
