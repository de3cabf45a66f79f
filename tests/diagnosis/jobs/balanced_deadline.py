"""Two ranks collect samples until a common time: rank 1 begins later, both compute until then. Nothing waits, and nothing is at fault."""

import time

from planted import Job, compute

job = Job(recorded=3, steps=4)
LENGTH = 1.2


def main(job: Job) -> None:
    import torch.distributed as dist

    import stepprof

    dist.init_process_group("gloo")
    stepprof.init(**job.init())
    for step in job.steps:
        dist.barrier()
        begin = time.perf_counter()  # one clock for all processes of a machine
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("load"):
                compute(0.1 + 0.5 * job.rank)
            with stepprof.region("collect"):
                compute(begin + LENGTH - time.perf_counter())
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    job.write(None, parts=job.ranks(2, main))
