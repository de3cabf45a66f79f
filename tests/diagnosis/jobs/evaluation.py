"""The policy is evaluated within a step."""

from planted import Job, compute

import stepprof

job = Job(recorded=3, steps=4)


@stepprof.region("evaluate")
def evaluate() -> None:
    for _ in range(4):
        with stepprof.region("eval_batch"):
            compute(0.1)


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.2)
        with stepprof.region("backward"):
            compute(0.2)
        if job.faulty and step == job.recorded:
            with job.plant():
                evaluate()
stepprof.shutdown()
job.write("evaluation", process="rank 0", region="evaluate")
