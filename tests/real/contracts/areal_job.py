"""Run a job of AReaL with its real training loop and tracer. Engines, models and data are small
stand-ins.

It does not mention stepprof. Step 2 is followed by an evaluation.
"""

from __future__ import annotations

import os
from types import SimpleNamespace as Options

from areal.trainer import PPOTrainer
from areal.utils.perf_tracer import trace_perf, trace_scope
from torch import distributed

STEPS = 3


class Anything:
    """A stand-in for objects whose results the loop does not use."""

    def __getattr__(self, name):
        return lambda *_, **__: Anything()


class Engine(Anything):
    """Stands for an engine that trains. It binds AReaL's tracer early, as AReaL's engines do."""

    cpu_group = None

    def compute_logp(self, batch):
        with trace_scope("fsdp_engine.forward"):
            return [0 for _ in batch]

    def compute_values(self, batch):
        return [0 for _ in batch]

    @trace_perf("ppo_actor.ppo_update", category="compute")
    def ppo_update(self, batch):
        with trace_scope("fsdp_engine.step"):
            return

    def prepare_batch(self, *_, **__):
        return [{"prompt": 1}]

    def is_data_parallel_head(self):
        return True


class Trainer(PPOTrainer):
    """A trainer without models."""

    def __init__(self):
        own = Options(
            enabled=True, profile_steps=[1], save_interval=1, session_tracer=None,
            fileroot="areal", experiment_name="e", trial_name="t",
        )  # fmt: skip
        self.config = Options(
            total_train_epochs=1, total_train_steps=STEPS, dynamic_bs=False, memory_profiler=None, perf_tracer=own,
            actor=Options(should_compute_prox_logp=lambda: True), gconfig=Options(n_samples=1), eval_gconfig=Options(n_samples=1),
        )  # fmt: skip
        self.scheduler = (
            None if os.environ.get("AREAL_SPMD_MODE") else Options(_workers={}, _colocated_roles={})
        )
        self.actor, self.critic, self.ref, self.teacher = Engine(), Engine(), Engine(), None
        self.rollout = self.eval_rollout = Anything()
        self.rollout.server_infos = []
        self.weight_update_meta = self.saver = self.data_controller = Anything()
        self.recover_info = None
        self.train_dataloader, self.valid_dataloader = [["prompt"]] * 9, [["prompt"]]
        self._should_offload_rollout = True
        self._should_offload_actor = self._should_offload_ref = False
        self._should_offload_critic = self._should_offload_teacher = False
        self.evaluator = Options(evaluate=lambda evaluate, epoch, step, _: step == 1 and evaluate())
        self.stats_logger = Options(commit=lambda epoch, step, *_: print("committed", step))
        self._config_perf_tracer()

    def _requires_proxy_workflow(self, workflow):
        return False

    def _save_hf(self, **_):
        return None

    def _save_recover_checkpoint(self, **_):
        return None

    def _export_and_commit_stats(self, epoch, epoch_step, global_step):
        self.stats_logger.commit(epoch, epoch_step, global_step, {})


if __name__ == "__main__":
    trainer = Trainer()
    if trainer.scheduler is None:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    trainer.train(workflow="workflow", eval_workflow="workflow")
    print("trained", STEPS)
