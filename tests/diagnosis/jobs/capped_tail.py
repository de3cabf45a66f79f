"""The capture ends at its own limit, and the longest region of the step begins after it: only its span shows it."""

import time

from planted import Job, compute

import stepprof

job = Job()

stepprof.init(**job.init(backend="torch", max_seconds=0.4 if job.faulty else 60))
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.6)
        with stepprof.region("postprocess"):
            time.sleep(0.8) if job.faulty else compute(0.8)
stepprof.shutdown()
job.write("coverage", process="rank 0", why="`postprocess`")
