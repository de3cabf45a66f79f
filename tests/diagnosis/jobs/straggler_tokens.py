"""Rank 1 gets twice the tokens of rank 0, so that rank 0 waits for it in the all-reduce."""

from planted import Job, compute

job = Job(recorded=3, steps=4)


def main(job: Job) -> None:
    import torch
    import torch.distributed as dist

    import stepprof

    dist.init_process_group("gloo")
    stepprof.init(**job.init(backend="torch"))
    tokens = 8192 if job.rank == 1 and job.faulty else 4096
    gradients = torch.ones(1000)
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("update_policy"):
                with stepprof.region("forward_backward", tokens=tokens), job.plant():
                    compute(tokens / 4096 * 0.4)
                with stepprof.region("reduce_gradients"):
                    dist.all_reduce(gradients)
            with stepprof.region("optimizer"):
                compute(0.1)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(2, main)
    excess = ranks[1]["planted"] - ranks[0]["planted"]
    job.write(
        "straggler", process="rank 1", region="forward_backward", seconds=excess, why="tokens", parts=ranks
    )
