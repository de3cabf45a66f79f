"""Attach the actors of a trainer of verl: ranks, servers, agent loops and reward workers.

What only this module knows: where each trainer keeps them. A fully asynchronous trainer has ranks and replicas alone; the other actors
belong to its rollouter, which is an actor too.
"""

from __future__ import annotations

import sys
from typing import Any

import stepprof
from stepprof.integrations.groups import merged
from stepprof.integrations.training_loop import EVAL
from stepprof.log import logger
from stepprof.untraced import Reference

GROUPS = {
    "actor_rollout_wg": ("actor", "weight_sync"),
    "ref_policy_wg": ("ref",),
    "critic_wg": ("critic",),
}
"""The trainer's groups of ranks, with the roles that they play; several names may stand for the same processes."""

ENGINES = {"vllm": "engine", "sglang": "tokenizer_manager"}
"""Where the actor of a server has its engine, for each engine that can be recorded."""

ACTORS: dict[str, tuple[str, ...]] = {
    "verl.workers.rollout.llm_server:LLMServerManager.get_replicas": (),
    "verl.single_controller.ray:RayWorkerGroup.workers": (),
    "verl.experimental.reward_loop:RewardLoopManager.reward_loop_worker_handles": (),
}
"""The names by which each trainer attaches its actors."""


def attach_actors(trainer: Any, agent_loops: Any = None) -> None:
    """Attach the actors of a trainer; `agent_loops` is the manager that `fit` of V1 gets."""
    for workers, roles in _ranks(trainer):
        stepprof.attach(workers, role=roles, kind="rank")
    engine = trainer.config.actor_rollout_ref.rollout.name
    if engine in ENGINES:
        stepprof.attach(lambda: _servers(trainer), role="rollout", kind="engine", find=ENGINES[engine])
    else:
        logger.warning("adapter.left_out", name="verl", part=f"the engine {engine}")
    loops, rewards = _loops_and_rewards(trainer, agent_loops)
    if loops:
        stepprof.attach(loops, role=["rollout", EVAL], kind="spans", name="agent-loop")
    if rewards:
        stepprof.attach(rewards, role=["rollout", "reward", EVAL], kind="spans", name="reward-loop")


def _ranks(trainer: Any) -> list[tuple[list[Any], list[str]]]:
    """Return the actors of each group of ranks with the roles that they play; most often one group plays all."""
    groups = ((getattr(trainer, name, None), roles) for name, roles in GROUPS.items())
    return merged((list(group.workers), roles) for group, roles in groups if group is not None)


def _servers(trainer: Any) -> list[Any]:
    """Return the actors that hold the engines, as they are now: of a replica on several nodes the first.

    A replica that prefills and decodes in different engines has an actor for each of them.
    """
    return [
        server
        for replica in _replicas(trainer)
        for server in (*replica.servers[:1], *getattr(replica, "_decode_servers", ()))
    ]


def _replicas(trainer: Any) -> list[Any]:
    if _rollouter(trainer) is not None:
        owners = (trainer.checkpoint_manager, trainer.hybrid_checkpoint_manager)
        return [replica for owner in owners if owner is not None for replica in owner.replicas]
    several = getattr(trainer, "_rollout_server_managers", None)  # of V1
    managers = [trainer.llm_server_manager] if several is None else several()
    return [replica for manager in managers for replica in manager.get_replicas()]


def _rollouter(trainer: Any) -> Any:
    return getattr(trainer, "rollouter", None)


def _loops_and_rewards(trainer: Any, agent_loops: Any) -> tuple[list[Any], list[Any]]:
    rollouter = _rollouter(trainer)
    if rollouter is None:
        return _handles(trainer, agent_loops)
    found: tuple[list[Any], list[Any]] = sys.modules["ray"].get(
        rollouter.__ray_call__.remote(Reference(_handles))
    )
    return found


def _handles(owner: Any, agent_loops: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the actors of the agent loops, of which a job's own manager may have none, and those of the rewards."""
    manager = getattr(owner, "async_rollout_manager", None) if agent_loops is None else agent_loops
    rewards = owner.reward_loop_manager.reward_loop_worker_handles
    return list(getattr(manager, "agent_loop_workers", None) or ()), list(rewards or ())
