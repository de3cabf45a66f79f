"""The capture ends after half of the step, at its own limit."""

from planted import Job, compute

import stepprof

job = Job()

stepprof.init(**job.init(backend="torch", max_seconds=0.5 if job.faulty else 60))
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.6)
        with stepprof.region("backward"):
            compute(0.6)
stepprof.shutdown()
job.write("coverage", process="rank 0", why="max_seconds")
