"""Provide the Ray actors of slime and miles, written for stepprof's tests. They have the names and
the order of calls, but no model.
"""

from __future__ import annotations

import os
from importlib import import_module

import ray

PACKAGE = os.environ["PACKAGE"]
timing = import_module({"slime": "slime.observability.timer", "miles": "miles.utils.timer"}[PACKAGE])


class MegatronTrainRayActor:
    """Stands for a rank. Its timers are those of the package."""

    def __init__(self, world_size, rank, master_addr, master_port):
        os.environ.update(WORLD_SIZE=str(world_size), RANK=str(rank), LOCAL_RANK="0")

    def get_master_addr_and_port(self):
        return "localhost", 1

    def init(self, args, role, **_):
        self.args = args
        timing.Timer().start("train_wait")
        return 0

    def set_rollout_manager(self, rollout_manager):
        self.rollout_manager = rollout_manager

    def connect_actor_critic(self, critic):
        return None

    def train(self, rollout_id, rollout_data_ref, external_data=None):
        with timing.inverse_timer("train_wait"), timing.timer("train"):
            with timing.timer("ref_log_probs"):
                pass
            with timing.timer("actor_train"):
                pass

    @timing.timer
    def update_weights(self):
        ray.get(self.rollout_manager.get_updatable_engines_and_lock.remote())

    @timing.timer
    def save_model(self, rollout_id, force_sync=False):
        return None

    def clear_memory(self):
        return None


@ray.remote(num_cpus=0)
class SGLangEngine:
    """Stands for the actor that starts a server. No server answers at its address."""

    server_host = "127.0.0.1"
    server_port = 9

    def get_weight_version(self):
        return 0


@ray.remote
class RolloutManager:
    """Stands for the actor that generates samples."""

    def __init__(self, args, pg):
        self.engines = [SGLangEngine.remote()]

    def generate(self, rollout_id):
        return {"rollout_id": rollout_id}

    def eval(self, rollout_id):
        return None

    def save(self, rollout_id):
        return None

    def offload(self, tags=None):
        return None

    def onload(self, tags=None):
        return None

    def onload_weights(self):
        return None

    def onload_kv(self):
        return None

    def get_updatable_engines_and_lock(self):
        return self.engines, None, 0, [], []

    def dispose(self):
        return None
