"""Run a job of MindSpeed-RL. It does not mention stepprof."""

from mindspeed_rl.trainer.grpo_trainer_hybrid import RayGRPOTrainer
from mindspeed_rl.workers.scheduler.launcher import RayActorGroup

if __name__ == "__main__":
    workers, rewards = RayActorGroup(), RayActorGroup()
    trainer = RayGRPOTrainer(workers, workers, [rewards], train_iters=3)
    trainer.fit(iter(range(9)))
    print("trained", trainer.train_iters)
