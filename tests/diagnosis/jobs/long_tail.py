"""Seven of eight samples are generated in 0.4 s, the last one takes 0.6 s longer."""

import asyncio
import time

from planted import Job, compute

import stepprof

job = Job()


async def generate(sample: int, seconds: float) -> float:
    with stepprof.bind(sample=f"s{sample}"):
        async with stepprof.region("generate"):
            await asyncio.sleep(seconds)
    return time.perf_counter()


async def rollout() -> None:
    last = 1.0 if job.faulty else 0.4
    ends = await asyncio.gather(*(generate(sample, 0.4) for sample in range(7)), generate(7, last))
    job.planted(max(ends) - sorted(ends)[-2])


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.profile_step(step, role="rollout"):
            asyncio.run(rollout())
        with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
            compute(0.3)
stepprof.shutdown()
# the wait for the generation itself is true of both
job.write("tail", process="rank 0", region="generate", true=[("sleep", None)])
