"""Run a job of torchtitan with its real training loop, spans and profiler. Model, data and
optimizer are small stand-ins.

It does not mention stepprof. Step 2 is followed by an evaluation.
"""

from __future__ import annotations

import os
from types import SimpleNamespace as Options

import torch
from torch import distributed
from torchtitan.observability import structured_logger as sl
from torchtitan.tools.profiler import Profiler
from torchtitan.trainer import Trainer

STEPS = 3


class Anything:
    """A stand-in for objects whose results the loop does not use."""

    def __getattr__(self, name):
        return lambda *_, **__: None


class Validator:
    """Stands for the validator."""

    def should_validate(self, step):
        return step == 2

    @sl.log_trace_span("eval")
    def validate(self, model_parts, step):
        return None


class Job(Trainer):
    """A trainer without a model."""

    def __init__(self, own):
        self.config = Options(
            profiler=own, dump_folder="outputs", checkpoint=Options(load_step=-1), validator=Options(enable=True),
            training=Options(steps=STEPS, disable_cuda_graphs=True, max_norm=1.0), comm=Options(train_timeout_seconds=1),
        )  # fmt: skip
        own.build = lambda **given: Profiler(own, **given)
        self.step = self.ntokens_seen = 0
        self.gradient_accumulation_steps, self.num_pipeline_parallel_microbatches = 2, 1
        self.parallel_dims = Options(
            dp_enabled=False, pp_enabled=False, ep_enabled=False, get_optional_mesh=lambda name: None
        )
        self.model_parts, self.device = [], "cpu"
        self.optimizers = self.lr_schedulers = self.checkpointer = self.gc_handler = Anything()
        self.metrics_processor = Options(should_log=lambda step: False)
        self.dataloader, self.validator = None, Validator()

    def batch_generator(self, _):
        while True:
            yield {"input": torch.ones(1)}, torch.ones(1)

    @sl.log_trace_span("fwd_bwd")
    def forward_backward_step(self, **_):
        return torch.ones(1)


class Config(Profiler.Config):
    """A configuration whose `build` can be replaced."""


if __name__ == "__main__":
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    own = Config(enable_profiling=bool(os.environ.get("OWN")), profile_freq=2, profiler_warmup=1)
    trainer = Job(own)
    trainer.train()
    print("trained", trainer.step)
