"""The tool calls of sixteen coroutines, each in a region, pass a semaphore inside of it that lets through one at a time."""

import asyncio
import time

from planted import Job, compute

import stepprof

job = Job()


async def call(limit: asyncio.Semaphore) -> float:
    """Return when it had passed the semaphore."""
    async with stepprof.region("tool"), limit:
        passed = time.perf_counter()
        await asyncio.sleep(0.05)
    return passed


async def rollout() -> None:
    limit = asyncio.Semaphore(1 if job.faulty else 16)
    begin = time.perf_counter()
    passed = await asyncio.gather(*(call(limit) for _ in range(16)))
    job.planted(max(passed) - begin)


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            asyncio.run(rollout())
        with stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
job.write("serial", process="rank 0", region="tool", why="semaphore in `call`")
