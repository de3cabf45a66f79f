"""Run a job of miles. Its groups and factories are real and make the calls of its `train.py`; the
actors are replaced. It does not mention stepprof. It runs three steps with a critic: the first one
trains only the critic, and the last one is saved.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace as Options

import ray
from miles.ray.placement_group import create_placement_groups, create_rollout_manager, create_training_models
from miles.utils.async_utils import eager_create_task

STEPS = 3
args = Options(
    actor_num_nodes=1, actor_num_gpus_per_node=2, critic_num_nodes=1, critic_num_gpus_per_node=1,
    rollout_num_gpus=1, use_critic=True, colocate=True, debug_train_only=False, debug_rollout_only=False,
    pin_rollout_manager_to_head=False, num_rollout=STEPS, check_weight_update_equal=False, offload_rollout=False,
    kl_coef=0, use_kl_loss=True, start_rollout_id=None, rollout_global_dataset=False, train_env_vars={},
    dumper_source_patcher_config_train=None, offload_train=False, train_backend="megatron",
    use_pytorch_profiler=False, profile_target=["train_overall"],
)  # fmt: skip


async def train():
    """Run the calls of `train.py`."""
    groups = create_placement_groups(args)
    manager, _ = create_rollout_manager(args, groups["rollout"])
    actor, critic = await create_training_models(args, groups, manager)
    await actor.update_weights()
    for rollout_id in range(args.start_rollout_id, STEPS):
        data = await manager.generate.remote(rollout_id)
        critic_task = await eager_create_task(critic.train(rollout_id, data))
        if rollout_id >= 1:
            await actor.train(rollout_id, data)
        await critic_task
        if rollout_id == STEPS - 1:
            await actor.save_model(rollout_id, force_sync=True)
        await actor.clear_memory()
        await actor.update_weights()
        if rollout_id == 1:
            await manager.eval.remote(rollout_id)
    await manager.dispose.remote()


if __name__ == "__main__":
    ray.init(address="local", num_cpus=4, num_gpus=4, include_dashboard=False)
    asyncio.run(train())
    print("trained", STEPS)
    ray.shutdown()
