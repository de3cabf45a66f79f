"""Provide a skeleton of ROLL's RLVR pipeline, written for the tests. It has the names, the timers
and the order of calls, but no computation.
"""

from contextlib import ExitStack

from codetiming import Timer
from roll.configs.base_config import BaseConfig
from roll.distributed.executor.cluster import Cluster, configuration
from roll.pipeline.base_worker import ActorWorker
from roll.utils.worker_state import WorkerState


class RLVRPipeline:
    """A pipeline of some steps. Step 1 begins with a validation. Step 2 is skipped, because no
    sample is left to train on.
    """

    def __init__(self, steps):
        self.steps = steps
        self.state = WorkerState()
        self.pipeline_config = BaseConfig()
        self.actor_train = Cluster("actor_train", ActorWorker, None, configuration(2))
        self.actor_infer = Cluster("actor_infer", ActorWorker, None, configuration(0))
        self.references = {"default": Cluster("reference", ActorWorker, None, configuration(1))}

    def run(self):
        for global_step in range(self.steps):
            if global_step <= self.state.step:
                continue
            with Timer(name="step_total", logger=None) as timer, ExitStack():
                with Timer(name="step_stop_server", logger=None):
                    pass
                with Timer(name="step_model_update", logger=None):
                    self.actor_train.call("model_update")
                if global_step == 1:
                    with Timer(name="val_step", logger=None):
                        self.val()
                with Timer(name="step_generate", logger=None):
                    pass
                with Timer(name="cal_ref_log_probs", logger=None):
                    self.references["default"].call("compute_log_probs")
                with Timer(name="cal_old_log_probs_values", logger=None):
                    self.actor_train.call("compute_log_probs")
                for name in (
                    "get_sample_level_mask",
                    "reward_postprocess",
                    "get_token_reward",
                    "compute_advantage",
                ):
                    with Timer(name=name, logger=None):
                        pass
                if global_step == 2:
                    self.state.step = global_step
                    continue
                with Timer(name="step_train", logger=None):
                    self.actor_train.call("train_step")
                self.state.step = global_step
            assert timer.last > 0

    def val(self):
        with Timer(name="step_generate", logger=None):
            pass
