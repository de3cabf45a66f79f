"""The rewards of forty samples pass a thread pool with one worker. No thread of the pool has a region."""

import time
from concurrent.futures import ThreadPoolExecutor

from planted import Job, compute

import stepprof

job = Job()


def reward(sample: int) -> float:
    time.sleep(0.02)  # a reward model answers over the network
    return 1.0


stepprof.init(**job.init())
with ThreadPoolExecutor(1 if job.faulty else 40) as pool:
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("score"), job.plant():
                list(pool.map(reward, range(40)))
            with stepprof.region("update"):
                compute(0.4)
stepprof.shutdown()
job.write("threads", process="rank 0", region="score", why="`reward` (time.sleep)")
