"""A driver calls two ranks in its window of their role, and computes statistics there when they have finished: it waits for nothing then."""

from calling import Ranks
from planted import Job, compute

import stepprof

job = Job(steps=3)


def work(job: Job, step: int) -> None:
    with stepprof.region("update"):
        compute(0.5)


if __name__ == "__main__":
    ranks = Ranks(job, work)
    stepprof.init(**job.init(), name="driver")
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step), stepprof.profile_step(step, role="actor"):
            ranks.call(step)
            compute(0.5)
    ranks.end()
    stepprof.shutdown()
    job.write(None)
