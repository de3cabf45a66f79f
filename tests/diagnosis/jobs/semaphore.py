"""The tool calls of eight coroutines pass a semaphore that lets through one at a time."""

import asyncio

from planted import Job, compute

import stepprof

job = Job()


async def call(limit: asyncio.Semaphore) -> None:
    async with limit, stepprof.region("tool"):
        await asyncio.sleep(0.1)


async def rollout() -> None:
    limit = asyncio.Semaphore(1 if job.faulty else 8)
    await asyncio.gather(*(call(limit) for _ in range(8)))


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"), job.plant():
            asyncio.run(rollout())
        with stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
job.write("serial", process="rank 0", region="tool")
