"""Provide a skeleton of ROLL's clusters, written for the tests."""

from types import SimpleNamespace as Options

import ray


class Cluster:
    """A group of workers, which are actors of Ray."""

    def __init__(self, name, worker_cls, resource_manager, worker_config):
        size = worker_config.world_size
        self.worker_config = worker_config
        variables = [{"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"} for rank in range(size)]
        options = [{"num_cpus": 0, "runtime_env": {"env_vars": each}} for each in variables]
        self.workers = [ray.remote(worker_cls).options(**each).remote() for each in options]

    def call(self, method):
        return ray.get([worker.run.remote(method) for worker in self.workers])


def configuration(world_size):
    """Return the part of a cluster's configuration that the adapter reads."""
    return Options(world_size=world_size, strategy_args=Options(strategy_name="sglang"))
