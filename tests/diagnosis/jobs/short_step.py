"""The step takes 3 ms, which is less than what it costs to record it."""

from planted import Job, compute

import stepprof

job = Job(recorded=4, steps=6)

stepprof.init(**job.init(backend="torch"))
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.001 if job.faulty else 0.3)
        with stepprof.region("backward"):
            compute(0.002 if job.faulty else 0.3)
stepprof.shutdown()
job.write("short")
