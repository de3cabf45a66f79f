"""Run a job of slime: the calls of its `train.py`, or of its `train_async.py` with the argument
"async". It does not mention stepprof.

It has three steps. The last one is saved, and an evaluation follows the second one.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace as Options

import ray
from slime.ray.placement_group import create_rollout_manager, create_training_models

STEPS = 3
args = Options(
    ranks=2, use_critic="critic" in sys.argv, num_rollout=STEPS, use_pytorch_profiler="profile" in sys.argv,
    profile_target=["train_overall"], profile_step_start=1, profile_step_end=2,
)  # fmt: skip


def prepare():
    """Return the rollout manager and the groups for either loop."""
    manager, _ = create_rollout_manager(args, None)
    actor, critic = create_training_models(args, None, manager)
    actor.update_weights()
    return manager, actor, critic


def train():
    """Run the calls of `train.py`."""
    manager, actor, critic = prepare()
    for rollout_id in range(STEPS):
        if rollout_id == 0:
            ray.get(manager.eval.remote(rollout_id))
        data = ray.get(manager.generate.remote(rollout_id))
        ray.get(manager.offload.remote())
        values = critic.async_train(rollout_id, data) if critic else None
        ray.get(actor.async_train(rollout_id, data, external_data=values))
        if rollout_id == STEPS - 1:
            actor.save_model(rollout_id, force_sync=True)
        actor.clear_memory()
        ray.get(manager.onload_weights.remote())
        actor.update_weights()
        ray.get(manager.onload_kv.remote())
        if rollout_id == 1:
            ray.get(manager.eval.remote(rollout_id))
    ray.get(manager.dispose.remote())


def train_async():
    """Run the calls of `train_async.py`. The weights are updated only after the second step."""
    manager, actor, _ = prepare()
    following = manager.generate.remote(0)
    for rollout_id in range(STEPS):
        if following is not None:
            data = ray.get(following)
        if rollout_id + 1 < STEPS:
            following = manager.generate.remote(rollout_id + 1)
        ray.get(actor.async_train(rollout_id, data))
        if rollout_id == 1:
            data, following = ray.get(following), None
            actor.update_weights()
    ray.get(manager.dispose.remote())


if __name__ == "__main__":
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    train_async() if "async" in sys.argv else train()
    print("trained", STEPS, "own profiler", args.use_pytorch_profiler)
    ray.shutdown()
