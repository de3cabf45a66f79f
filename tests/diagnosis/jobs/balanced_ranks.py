"""Two ranks with equal work and a small all-reduce after each micro-batch, no fault."""

from planted import Job, compute

job = Job(recorded=3, steps=4)


def main(job: Job) -> None:
    import torch
    import torch.distributed as dist

    import stepprof

    dist.init_process_group("gloo")
    stepprof.init(**job.init(backend="torch"))
    gradients = torch.ones(1000)
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            for _ in range(3):
                with stepprof.region("micro_batch", tokens=4096):
                    compute(0.2)
                dist.all_reduce(gradients)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    job.write(None, parts=job.ranks(2, main))
