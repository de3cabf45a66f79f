"""Sixteen samples are trained in four micro-batches that have room for eight each."""

from planted import Job, compute

import stepprof

job = Job()


def update(samples: int) -> None:
    """Run the kernels of a whole batch, however many of its places are taken."""
    with stepprof.region("micro_batch", batch_size=8, samples=samples):
        with job.plant():
            compute(0.3 * (1 - samples / 8))
        compute(0.3 * samples / 8)


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("update"):
            for samples in (4, 4, 4, 4) if job.faulty else (8, 8):
                update(samples)
        with stepprof.region("log_probs"):
            compute(0.2)
stepprof.shutdown()
job.write("half_batch", process="rank 0", region="micro_batch")
