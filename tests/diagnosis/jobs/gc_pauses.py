"""The job keeps millions of objects, and each garbage collection looks at all of them."""

import gc
import time

from planted import Job, compute

import stepprof

job = Job()
kept = [[number] for number in range(800_000)]
began = 0.0


def watch(phase: str, info: dict[str, int]) -> None:
    global began
    if phase == "start":
        began = time.perf_counter()
    else:
        job.planted(time.perf_counter() - began)


gc.disable()
gc.callbacks.append(watch)
stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("forward"):
            compute(0.2)
        with stepprof.region("update"):
            for _ in range(6 if job.faulty else 0):
                compute(0.05)
                gc.collect()
            compute(0.0 if job.faulty else 0.3)
stepprof.shutdown()
job.write("gc", process="rank 0", region="update")
