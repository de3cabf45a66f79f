"""A large batch of Python objects is pickled between two phases."""

import pickle

from planted import Job, compute

import stepprof

job = Job()
batch = [{"tokens": [sample * 100 + place for place in range(100)]} for sample in range(30_000)]

stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            compute(0.3)
        with stepprof.region("to_trainer"), job.plant():
            for _ in range(8 if job.faulty else 0):  # to each of eight trainers
                pickle.dumps(batch)
        with stepprof.region("update"):
            compute(0.3)
stepprof.shutdown()
job.write("pickle", process="rank 0", region="to_trainer")
