"""Rank 1 reads a slow file in every 7th step. The ranks meet at a barrier that no profiler sees."""

import multiprocessing

from planted import Job, compute

job = Job(recorded=14, steps=29)
meet = multiprocessing.get_context("fork").Barrier(2)


def main(job: Job) -> None:
    import stepprof

    stepprof.init(**job.init())
    for step in job.steps:
        late = job.faulty and job.rank == 1 and step % 7 == 0
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("prepare"), job.plant():
                compute(0.45 if late else 0.05)
            with stepprof.region("update"):
                compute(0.1)
            with stepprof.region("meet"):
                meet.wait()
    stepprof.shutdown()


if __name__ == "__main__":
    ranks = job.ranks(2, main)
    excess = ranks[1]["planted"] - ranks[0]["planted"]
    job.write(
        "straggler", process="rank 1", region="prepare", seconds=excess, why="every 7th step", parts=ranks
    )
