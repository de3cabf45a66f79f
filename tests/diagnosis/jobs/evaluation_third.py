"""The policy is evaluated in every third step, in a window of its own role."""

from planted import Job, compute

import stepprof

job = Job(recorded=6, steps=10)

stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.1)
        with stepprof.region("backward"):
            compute(0.2)
        if job.faulty and step % 3 == 0:
            with job.plant(), stepprof.profile_step(step, "eval"), stepprof.region(f"eval_batch_{step}"):
                compute(0.3)
stepprof.shutdown()
job.write("evaluation", process="rank 0", why="which every 3rd step has")
