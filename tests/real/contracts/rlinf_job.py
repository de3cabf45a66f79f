"""Run a job of RLinf with its real runner, timers and ranges. The work of its workers is replaced
by small stand-ins.

It does not mention stepprof. Step 2 is followed by an evaluation.
"""

from __future__ import annotations

from types import SimpleNamespace as Options

from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorUtil
from rlinf.utils.distributed import ScopedTimer

STEPS = 3


class Handle:
    """Stands for the result of a group of workers."""

    def wait(self):
        return [{}]

    def consume_durations(self, return_per_rank=False):
        return {}, []


class Group:
    """Replace a group of workers. There are no workers: the methods run in this process."""

    worker_info_list = ()
    worker_group_name = "group"

    def __getattr__(self, name):
        def run(*_, **__):
            with AcceleratorUtil.profiling_range("none", f"worker/{name}"):
                return Handle()

        return run


class Runner(EmbodiedRunner):
    """A runner without workers."""

    def __init__(self):
        settings = {"weight_sync_interval": 1}
        self.cfg = Options(runner=Options(get=settings.get, val_check_interval=2, save_interval=-1))
        self.actor, self.rollout, self.env = Group(), Group(), Group()
        self.critic = self.reward = None
        self.env_channel = self.rollout_channel = self.actor_channel = self.reward_channel = None
        self.weight_sync_interval, self.overlap_env_bootstrap = 1, False
        self.enable_per_worker_metric_log = False
        self._profile_all_steps, self._profile_steps = False, None
        self.global_step, self.max_steps = 0, STEPS
        self.timer = ScopedTimer(reduction="max", sync_cuda=False)
        self.metric_logger = Options(log=lambda *_, **__: None)

    def print_metrics_table_async(self, *_, **__):
        return None

    def _finish_run(self):
        return None


if __name__ == "__main__":
    runner = Runner()
    runner.run()
    print("trained", runner.global_step)
