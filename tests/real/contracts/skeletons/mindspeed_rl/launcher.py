"""Provide a skeleton of MindSpeed-RL's groups of workers, written for the tests."""


class RayActorGroup:
    """A group of workers, here without any."""

    def __init__(self, profiler_config=None):
        self.actor_handlers = []

    def get_iteration(self):
        return 1

    def wait_all_ref_objs_run_over(self):
        return None

    def generate_sequences(self, blocking=False):
        return None

    def compute_rm_score(self, blocking=False):
        return None

    def compute_ref_log_prob(self, blocking=False):
        return None

    def compute_log_prob(self, blocking=False):
        return None

    def compute_values(self, blocking=False):
        return None

    def update_critic(self, blocking=False, kl_ctrl=None):
        return None

    def update(self, kl_ctrl, skip_actor_log_prob):
        return None

    def update_actor(self, skip_actor_log_prob, kl_ctrl=None):
        return None

    def save_checkpoint(self, iteration):
        return None
