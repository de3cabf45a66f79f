"""A driver waits in its step window for two ranks in the role `actor`. Rank 1 takes 0.6 s longer."""

from calling import Ranks
from planted import Job, compute

import stepprof

job = Job(recorded=3, steps=4)


def work(job: Job, step: int) -> None:
    with stepprof.region("update"):
        compute(0.3)
        if job.rank == 1 and job.faulty:
            compute(0.6)


if __name__ == "__main__":
    ranks = Ranks(job, work)
    stepprof.init(**job.init(), name="driver")
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.profile_step(step, role="reward"), stepprof.region("score"):
                compute(0.2)
            ranks.call(step)
    ranks.end()
    stepprof.shutdown()
    job.write("straggler", process="actor rank 1", region="update", seconds=0.6 if job.faulty else 0.0)
