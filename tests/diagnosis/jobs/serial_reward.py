"""The rewards of eight samples are asked for one after another."""

import time
from concurrent.futures import ThreadPoolExecutor

from planted import Job, compute

import stepprof

job = Job()


@stepprof.region("ask_reward_model")
def ask(sample: int) -> float:
    time.sleep(0.1)  # a reward model answers over the network
    return 1.0


stepprof.init(**job.init())
with ThreadPoolExecutor(8) as pool:
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("rewards"), job.plant():
                list(map(ask, range(8)) if job.faulty else pool.map(ask, range(8)))
            with stepprof.region("update"):
                compute(0.4)
stepprof.shutdown()
job.write("serial", process="rank 0", region="ask_reward_model", true=[("sleep", None), ("serial", None)])
