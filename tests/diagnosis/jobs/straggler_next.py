"""Rank 1 of three packs slowly. Rank 2 always collates nearly as long, so that mending rank 1 brings less than it costs.

To collate in the training loop is itself a finding, with the fault or without.
"""

from planted import Job, compute

job = Job(recorded=3, steps=4)
SLOW, LOAD, USUAL = 0.6, 0.4, 0.1


def main(job: Job) -> None:
    import torch
    import torch.distributed as dist

    import stepprof

    dist.init_process_group("gloo")
    stepprof.init(**job.init(backend="torch"))
    gradients = torch.ones(1000)
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("pack_sequences"), job.plant():
                compute(SLOW if job.rank == 1 and job.faulty else USUAL)
            with stepprof.region("collate"):
                compute(LOAD if job.rank == 2 else USUAL)
            dist.all_reduce(gradients)
    stepprof.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401 - before the fork

    ranks = job.ranks(3, main)
    excess = ranks[1]["planted"] - sorted(rank["planted"] for rank in ranks)[1]
    job.write(
        "straggler",
        process="rank 1",
        region="pack_sequences",
        seconds=excess,
        costs=SLOW - LOAD,
        parts=ranks,
        true=[("straggler", "collate"), ("data", "collate")],
    )
