"""Where each trainer of verl keeps its ranks, servers, agent loops and reward workers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepprof.integrations import verl_actors


class TestRanks:
    def test_processes_that_play_several_roles(self) -> None:
        """The reference model is in the actor's processes, the critic in its own."""
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
        """A trainer without a critic has no such attribute."""
        shared = [SimpleNamespace(_actor_id="a")]
        trainer = SimpleNamespace(actor_rollout_wg=SimpleNamespace(workers=shared))
        assert verl_actors._ranks(trainer) == [(shared, ["actor", "weight_sync"])]


def replica(*servers):
    """Return a replica with the actors of its servers, the first of which has the engine."""
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
        """A replica on several nodes has a server on each; the engine's head is in the first."""
        assert verl_actors._servers(trainer) == ["a", "c"]

    def test_prefill_and_decode_in_different_engines(self) -> None:
        """Each is recorded: the actor that prefills is the first server, those that decode are all."""
        disaggregated = replica("prefill", "decode 0", "decode 1")
        disaggregated._decode_servers = ["decode 0", "decode 1"]
        trainer = SimpleNamespace(llm_server_manager=manager(disaggregated))
        assert verl_actors._servers(trainer) == ["prefill", "decode 0", "decode 1"]


class TestHandles:
    def test_a_manager_of_the_jobs_own(self) -> None:
        """It may have no workers, and a reward model on the trainer's GPUs has none either."""
        trainer = SimpleNamespace(reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=None))
        assert verl_actors._handles(trainer, object()) == ([], [])

    def test_a_trainer_that_owns_the_manager(self) -> None:
        """That is one of V0, or the rollouter of a fully asynchronous one."""
        owner = SimpleNamespace(
            async_rollout_manager=SimpleNamespace(agent_loop_workers=("a",)),
            reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=["r"]),
        )
        assert verl_actors._handles(owner) == (["a"], ["r"])
