"""Provide a skeleton of MindSpeed-RL's GRPO trainer, written for the tests. It has the names, the
timer and the order of calls, but no computation.
"""

from codetiming import Timer
from mindspeed_rl.trainer.base import RayBaseTrainer


class RayGRPOTrainer(RayBaseTrainer):
    """A trainer that resumes after the first iteration, and shuts Ray down before it returns."""

    def fit(self, data_iters):
        iteration = self.actor_worker.get_iteration()
        while iteration < self.train_iters:
            with Timer(name="iteration", logger=None) as timer:
                next(data_iters)
                self.actor_worker.generate_sequences(blocking=False)
                for reward in self.reward_list:
                    reward.compute_rm_score(blocking=False)
                self.ref_worker.compute_ref_log_prob(blocking=False)
                self.actor_worker.compute_log_prob(blocking=False)
                self.actor_worker.wait_all_ref_objs_run_over()
                self.actor_worker.update(None, False)
            assert timer.last > 0
            iteration += 1
            self.actor_worker.save_checkpoint(iteration)
        print("ray is shut down")
