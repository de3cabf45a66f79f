"""The batch is tokenised in the training loop, by its own processor time."""

from planted import Job, compute

import stepprof

job = Job()


def load_batch() -> None:
    with stepprof.region("load_batch"), job.plant():
        compute(0.5 if job.faulty else 0.01)


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        load_batch()
        with stepprof.region("forward"):
            compute(0.2)
        with stepprof.region("backward"):
            compute(0.3)
stepprof.shutdown()
job.write("data", process="rank 0", region="load_batch")
