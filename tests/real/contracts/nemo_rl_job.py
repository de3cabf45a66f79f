"""Run a job of NeMo-RL. It does not mention stepprof."""

import sys
from types import SimpleNamespace as Options

import ray
from nemo_rl.algorithms.grpo import grpo_train
from nemo_rl.distributed.worker_groups import RayWorkerGroup

if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    policy = Options(worker_group=RayWorkerGroup())
    generation = Options(get_rollout_engine_urls=lambda: ["http://127.0.0.1:9"])
    try:
        grpo_train(policy, generation, steps=3, fails_in=3 if "fails" in sys.argv else None)
    except RuntimeError as error:
        print("failed:", error)
    print("trained")
    ray.shutdown()
