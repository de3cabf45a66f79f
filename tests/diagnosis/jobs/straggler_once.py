"""Rank 1 takes longer in the recorded step alone. The ranks meet at a barrier that no profiler sees."""

import multiprocessing

from planted import Job, compute

job = Job(recorded=3, steps=5)
meet = multiprocessing.get_context("fork").Barrier(2)


def main(job: Job) -> None:
    import stepprof

    stepprof.init(**job.init())
    for step in job.steps:
        late = job.faulty and job.rank == 1 and step == job.recorded
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("prepare"):
                compute(0.1)
            with stepprof.region("update"), job.plant():
                compute(0.8 if late else 0.3)
            with stepprof.region("meet"):
                meet.wait()
    stepprof.shutdown()


if __name__ == "__main__":
    ranks = job.ranks(2, main)
    excess = ranks[1]["planted"] - ranks[0]["planted"]
    job.write("straggler", process="rank 1", region="update", seconds=excess, why="this step", parts=ranks)
