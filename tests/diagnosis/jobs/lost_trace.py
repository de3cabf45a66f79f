"""Rank 1 is killed in the recorded step, as the kernel does when memory runs out, and its trace is lost."""

import os
import signal

from planted import Job, compute

job = Job()


def main(job: Job) -> None:
    import stepprof

    stepprof.init(**job.init(backend="torch"))
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("forward"):
                compute(0.3)
            if job.faulty and job.rank == 1 and step == job.recorded:
                os.kill(os.getpid(), signal.SIGKILL)
            with stepprof.region("backward"):
                compute(0.3)
    stepprof.shutdown()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(2, main)
    job.write("coverage", process="rank 1", parts=ranks)
