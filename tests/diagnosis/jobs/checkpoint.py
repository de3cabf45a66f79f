"""A checkpoint is written in the training thread."""

import os
import pickle
from pathlib import Path

from planted import Job, compute

import stepprof

job = Job(recorded=3, steps=4)
weights = [os.urandom(1 << 20) * 8 for _ in range(24)]


def save(path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(weights, file)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("update"):
            compute(0.3)
        if job.faulty and step == job.recorded:
            with stepprof.region("save_checkpoint"), job.plant():
                save(job.out / "checkpoint.pickle")
stepprof.shutdown()
job.write("checkpoint", process="rank 0", region="save_checkpoint")
