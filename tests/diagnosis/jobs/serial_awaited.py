"""Eight tool calls are awaited one after the other, inside a region of their coroutine."""

import asyncio

from planted import Job, compute

import stepprof

job = Job()


async def call() -> None:
    async with stepprof.region("tool"):
        await asyncio.sleep(0.1)


async def rollout() -> None:
    async with stepprof.region("rollout"):
        if not job.faulty:
            await asyncio.gather(*(call() for _ in range(8)))
            return
        for _ in range(8):
            await call()


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with job.plant():
            asyncio.run(rollout())
        with stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
job.write("serial", process="rank 0", region="tool", true=[("sleep", None)])
