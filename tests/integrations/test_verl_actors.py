"""The places where each trainer of verl keeps its ranks, servers, agent loops and reward workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepprof.integrations import verl_actors


class TestRanks:
    def test_processes_that_play_several_roles(self) -> None:
        """The reference model runs in the actor's processes, so these have the roles of both. The critic
        has its own processes.
        """
        shared = [SimpleNamespace(_actor_id=each) for each in "ab"]
        critics = [SimpleNamespace(_actor_id="c")]
        trainer = SimpleNamespace(
            actor_rollout_wg=SimpleNamespace(workers=shared),
            ref_policy_wg=SimpleNamespace(workers=list(shared)),
            critic_wg=SimpleNamespace(workers=critics),
        )
        assert verl_actors._ranks(trainer) == [
            (shared, ["actor", "weight_sync", "ref"]),
            (critics, ["critic"]),
        ]

    def test_groups_that_are_missing(self) -> None:
        """A trainer without the attributes of other groups has only the actor's processes."""
        shared = [SimpleNamespace(_actor_id="a")]
        trainer = SimpleNamespace(actor_rollout_wg=SimpleNamespace(workers=shared))
        assert verl_actors._ranks(trainer) == [(shared, ["actor", "weight_sync"])]


def replica(*servers):
    """Return a replica with the actors of its servers; the first server has the engine."""
    return SimpleNamespace(servers=list(servers))


def manager(*replicas):
    """Return a manager of replicas."""
    return SimpleNamespace(get_replicas=lambda: list(replicas), replicas=list(replicas))


class TestServers:
    @pytest.mark.parametrize(
        "trainer",
        [
            SimpleNamespace(
                _rollout_server_managers=lambda: [manager(replica("a", "b")), manager(replica("c"))]
            ),
            SimpleNamespace(llm_server_manager=manager(replica("a", "b"), replica("c"))),
            SimpleNamespace(
                rollouter=object(),
                checkpoint_manager=manager(replica("a", "b"), replica("c")),
                hybrid_checkpoint_manager=None,
            ),
            SimpleNamespace(
                rollouter=object(),
                checkpoint_manager=manager(replica("a", "b")),
                hybrid_checkpoint_manager=manager(replica("c")),
            ),
        ],
        ids=["v1", "v0", "fully-async", "fully-async-hybrid"],
    )
    def test_the_first_of_each_replica(self, trainer) -> None:
        """A replica on several nodes has a server on each node. The first one is returned, because it has
        the engine's head.
        """
        assert verl_actors._servers(trainer) == ["a", "c"]

    def test_prefill_and_decode_in_different_engines(self) -> None:
        """If prefill and decode run in different engines, the first server and all decode servers are
        returned.
        """
        disaggregated = replica("prefill", "decode 0", "decode 1")
        disaggregated._decode_servers = ["decode 0", "decode 1"]
        trainer = SimpleNamespace(llm_server_manager=manager(disaggregated))
        assert verl_actors._servers(trainer) == ["prefill", "decode 0", "decode 1"]


class TestHandles:
    def test_a_manager_of_the_jobs_own(self) -> None:
        """A job's own manager may have no workers, and a reward model may have none either. Then there are
        no handles.
        """
        trainer = SimpleNamespace(reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=None))
        assert verl_actors._handles(trainer, object()) == ([], [])

    def test_a_trainer_that_owns_the_manager(self) -> None:
        """The agent loops and reward workers of a trainer that owns its manager are found."""
        owner = SimpleNamespace(
            async_rollout_manager=SimpleNamespace(agent_loop_workers=("a",)),
            reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=["r"]),
        )
        assert verl_actors._handles(owner) == (["a"], ["r"])
