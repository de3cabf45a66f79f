"""One process, two phases, no fault."""

from planted import Job, compute

import stepprof

job = Job()

stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            compute(0.3)
        with stepprof.region("update"):
            for _ in range(3):
                with stepprof.region("micro_batch", tokens=4096):
                    compute(0.1)
stepprof.shutdown()
job.write(None)
