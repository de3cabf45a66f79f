"""Provide a group of NeMo-RL's workers, written for stepprof's tests, with their names. They
compute nothing.
"""

import os

import ray
from nemo_rl.utils.nsys import NRL_NSYS_WORKER_PATTERNS
from nemo_rl.utils.timer import Timer


@ray.remote(num_cpus=0)
class Worker:
    """Stands for a worker of the policy."""

    def __init__(self):
        self.timer = Timer(context={"rank": os.environ["RANK"]})

    def run(self, method):
        self.timer.start(method)
        self.timer.stop(method)


class RayWorkerGroup:
    """Stands for NeMo-RL's group of two ranks."""

    def __init__(self, size=2):
        print("workers below nsys", bool(NRL_NSYS_WORKER_PATTERNS))
        variables = [{"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"} for rank in range(size)]
        self._workers = [Worker.options(runtime_env={"env_vars": each}).remote() for each in variables]
        self.dp_leader_worker_indices = [0]

    @property
    def workers(self):
        return self._workers

    @property
    def dp_size(self):
        return len(self.dp_leader_worker_indices)

    def get_dp_leader_worker_idx(self, dp_shard_idx):
        return self.dp_leader_worker_indices[dp_shard_idx]

    def run(self, method):
        ray.get([each.run.remote(method) for each in self._workers])
