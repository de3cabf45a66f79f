"""Provide a skeleton of the base of MindSpeed-RL's trainers, written for the tests."""


class RayBaseTrainer:
    """The common part of all trainers."""

    def __init__(
        self, actor_worker=None, ref_worker=None, reward_list=None, critic_worker=None, train_iters=1
    ):
        self.actor_worker, self.ref_worker, self.critic_worker = actor_worker, ref_worker, critic_worker
        self.reward_list, self.train_iters = reward_list, train_iters
