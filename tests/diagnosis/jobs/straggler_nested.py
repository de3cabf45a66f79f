"""Rank 1 of three packs its sequences slowly, deep in the update. Both others wait for it in the all-reduce."""

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
            with stepprof.region("rollout"):
                compute(0.1)
            with stepprof.region("update_policy"):
                with stepprof.region("pack_sequences"), job.plant():
                    compute(0.6 if job.rank == 1 and job.faulty else 0.05)
                with stepprof.region("forward_backward"):
                    compute(0.2)
                    dist.all_reduce(gradients)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(3, main)
    excess = ranks[1]["planted"] - sorted(rank["planted"] for rank in ranks)[1]
    job.write("straggler", process="rank 1", region="pack_sequences", seconds=excess, parts=ranks)
