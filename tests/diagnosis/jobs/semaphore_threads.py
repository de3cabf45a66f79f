"""The tool calls of twenty threads, each with a region, pass a semaphore inside of it that lets through one at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from planted import Job, compute

import stepprof

job = Job()
limit = threading.Semaphore(1 if job.faulty else 20)


@stepprof.region("tool")
def call(sample: int) -> None:
    with limit:
        time.sleep(0.04)


stepprof.init(**job.init())
with ThreadPoolExecutor(20) as pool:
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("rollout"), job.plant():
                list(pool.map(call, range(20)))
            with stepprof.region("update"):
                compute(0.4)
stepprof.shutdown()
job.write("lock", process="rank 0", region="rollout", why="Semaphore.acquire")
