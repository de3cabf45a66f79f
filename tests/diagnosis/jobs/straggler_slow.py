"""Rank 1 has the tokens of rank 0 and takes longer in every step: its machine is slow."""

from planted import Job, compute

job = Job(recorded=3, steps=4)


def main(job: Job) -> None:
    import torch
    import torch.distributed as dist

    import stepprof

    dist.init_process_group("gloo")
    stepprof.init(**job.init(backend="torch"))
    slower = 2.0 if job.rank == 1 and job.faulty else 1.0
    gradients = torch.ones(1000)
    for step in job.steps:
        with stepprof.profile_step(step, role="actor"), job.step(step):
            for _ in range(2):
                with stepprof.region("micro_batch"):
                    with stepprof.region("forward", tokens=2048), job.plant():
                        compute(0.2 * slower)
                    with stepprof.region("backward"):
                        compute(0.1)
            dist.all_reduce(gradients)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(2, main)
    excess = ranks[1]["planted"] - ranks[0]["planted"]
    job.write("straggler", process="actor rank 1", region="forward", seconds=excess, why="slow", parts=ranks)
