"""A batch has another shape than the one before, and torch.compile compiles the update again."""

import torch
from planted import Job, compute

import stepprof

torch.set_num_threads(1)
job = Job()
weight = torch.randn(64, 64)


@torch.compile(backend="aot_eager")
def update(batch: torch.Tensor) -> torch.Tensor:
    for _ in range(40):
        batch = torch.relu(batch @ weight) / batch.shape[1]
    return batch


for samples in (4, 5):  # the compiler is imported, and all of its parts have run, before the first step
    update(torch.randn(samples, 64))
torch.compiler.reset()

stepprof.init(**job.init())
for step in job.steps:
    samples = 8 + (job.faulty and step == job.recorded)
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            compute(0.2)
        with stepprof.region("update"), job.plant():
            update(torch.randn(samples, 64))
        with stepprof.region("log"):
            compute(0.2)
stepprof.shutdown()
job.write("compile", process="rank 0", region="update", why="recompile.py")
