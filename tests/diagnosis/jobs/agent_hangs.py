"""Eight agents alternate generation and a tool, without `bind`; the tool of one agent runs into its timeout."""

import asyncio
import time

from planted import Job, compute

import stepprof

job = Job()


async def agent(number: int) -> float:
    async with stepprof.region("agent"):
        for turn in range(3):
            async with stepprof.region("generate"):
                await asyncio.sleep(0.05 + 0.01 * number)
            async with stepprof.region("tool"):
                await asyncio.sleep(0.8 if job.faulty and (number, turn) == (2, 2) else 0.03)
    return time.perf_counter()


async def rollout() -> None:
    ends = sorted(await asyncio.gather(*(agent(number) for number in range(8))))
    job.planted(ends[-1] - ends[-2])


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            asyncio.run(rollout())
        with stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
job.write("tail", process="rank 0", region="agent")
