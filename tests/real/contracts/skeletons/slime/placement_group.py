"""Provide the factories of slime, written for stepprof's tests, with their names and their order of
calls.
"""

from __future__ import annotations

from processes import RolloutManager
from slime.ray.actor_group import RayTrainGroup


def create_rollout_manager(args, pg):
    return RolloutManager.options(num_cpus=0).remote(args, pg), None


def create_training_models(args, pgs, rollout_manager):
    actor = RayTrainGroup(args, 1, args.ranks, pgs)
    actor.create(rollout_manager=rollout_manager)
    critic = None
    if args.use_critic:
        critic = RayTrainGroup(args, 1, 1, pgs, role="critic")
        critic.create(rollout_manager=rollout_manager)
    return actor, critic
