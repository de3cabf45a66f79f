"""Provide slime's group of ranks, written for stepprof's tests, with its names and its order of calls."""

from __future__ import annotations

import ray
from processes import MegatronTrainRayActor


class RayTrainGroup:
    """Stands for slime's group of ranks."""

    def __init__(self, args, num_nodes, num_gpus_per_node, pg, num_gpus_per_actor=1, role="actor"):
        self.args, self.role = args, role
        self._world_size = num_nodes * num_gpus_per_node
        self._actor_handlers = []

    def create(self, rollout_manager=None):
        actor = ray.remote(num_cpus=0)(MegatronTrainRayActor)
        self._actor_handlers = [
            actor.remote(self._world_size, rank, None, None) for rank in range(self._world_size)
        ]
        begins = ray.get([each.init.remote(self.args, self.role) for each in self._actor_handlers])
        ray.get([each.set_rollout_manager.remote(rollout_manager) for each in self._actor_handlers])
        return begins

    def async_train(self, rollout_id, rollout_data_ref, external_data=None):
        return [
            each.train.remote(rollout_id, rollout_data_ref, external_data) for each in self._actor_handlers
        ]

    def save_model(self, rollout_id, force_sync=False):
        return ray.get([each.save_model.remote(rollout_id, force_sync) for each in self._actor_handlers])

    def update_weights(self):
        return ray.get([each.update_weights.remote() for each in self._actor_handlers])

    def onload(self):
        return None

    def offload(self):
        return None

    def clear_memory(self):
        return ray.get([each.clear_memory.remote() for each in self._actor_handlers])
