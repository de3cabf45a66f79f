"""Provide NeMo-RL's loop of GRPO, written for stepprof's tests: its timers and the order of its
calls, but no computation.
"""

from nemo_rl.distributed import worker_groups  # noqa: F401 - as in NeMo-RL, where the policy imports it
from nemo_rl.utils.nsys import maybe_gpu_profile_step
from nemo_rl.utils.timer import Timer


def grpo_train(policy, policy_generation, steps, fails_in=None):
    """Run a job that validates first and in step 2. Step 2 samples twice."""
    timer = Timer()
    validate()
    batches = 0
    total_steps = 0
    while total_steps < steps:
        maybe_gpu_profile_step(policy, total_steps + 1)
        maybe_gpu_profile_step(policy_generation, total_steps + 1)
        with timer.time("total_step_time"):
            with timer.time("data_processing"):
                batches += 1
            prepare = "prepare_for_generation"
            with timer.time(f"{prepare}/total"), timer.time(f"{prepare}/transfer_and_update_weights"):
                policy.worker_group.run("offload_before_refit")
            with timer.time("generation"):
                pass
            with timer.time("reward_calculation"):
                pass
            with timer.time("dynamic_sampling"):
                if batches == 2:
                    continue
            with timer.time("policy_and_reference_logprobs"):
                policy.worker_group.run("get_logprobs")
            with timer.time("advantage_calculation"):
                pass
            with timer.time("policy_training"):
                policy.worker_group.run("train")
                if total_steps + 1 == fails_in:
                    raise RuntimeError("out of memory")
            if total_steps == 1:
                validate()
            with timer.time("checkpointing"):
                pass
        total_steps += 1


async def async_grpo_train(policy, policy_generation, teacher_worker_groups=None):
    """Stand for the asynchronous loop, which is not run."""


def validate():
    timer = Timer()
    with timer.time("total_validation_time"):
        pass
