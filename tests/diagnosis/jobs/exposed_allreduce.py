"""The gradients are reduced after the backward pass, and nothing is computed meanwhile."""

from planted import Job, compute

job = Job()


def main(job: Job) -> None:
    import torch
    import torch.distributed as dist

    import stepprof

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stepprof.init(**job.init(backend="torch"))
    gradients = torch.ones(24_000_000)
    small = torch.ones(1000)
    dist.all_reduce(small)
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("backward"):
                compute(0.4)
            dist.barrier()  # both ranks enter at a time: none waits for the other
            with stepprof.region("reduce_gradients"), job.plant():
                for _ in range(4):
                    dist.all_reduce(gradients if job.faulty else small)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(2, main)
    seconds = sum(rank["planted"] for rank in ranks) / 2
    job.write("overlap", region="reduce_gradients", seconds=seconds, parts=ranks)
