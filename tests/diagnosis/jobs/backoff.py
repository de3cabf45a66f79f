"""A call to a service is repeated after a pause, and the pause is in the update."""

import time

from planted import Job, compute

import stepprof

job = Job()

stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.3)
        with stepprof.region("update"):
            with job.plant():
                time.sleep(0.5 if job.faulty else 0.0)
            compute(0.3)
stepprof.shutdown()
job.write("sleep", process="rank 0", region="update")
