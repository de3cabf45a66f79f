"""Each sample of the rollout is written to disk and synchronised in the training thread."""

import os

from planted import Job, compute

import stepprof

job = Job()
text = os.urandom(1 << 20)

stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("log_samples"), job.plant(), (job.out / "samples").open("wb") as file:
            while job.faulty and file.tell() < 240 << 20:
                for _ in range(20):
                    file.write(text)
                file.flush()
                os.fsync(file.fileno())
        with stepprof.region("update"):
            compute(0.3)
(job.out / "samples").unlink()
stepprof.shutdown()
job.write("io", process="rank 0", region="log_samples")
