"""Eight samples of equal length in the rollout, then rewards and the update as roles, no fault."""

import asyncio

from planted import Job, compute

import stepprof

job = Job()


async def generate(sample: int) -> None:
    with stepprof.bind(sample=f"s{sample}"):
        for _ in range(4):
            async with stepprof.region("generate"):
                await asyncio.sleep(0.1)


async def rollout() -> None:
    await asyncio.gather(*map(generate, range(8)))


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.profile_step(step, role="rollout"):
            asyncio.run(rollout())
        with stepprof.profile_step(step, role="reward"):
            compute(0.1)
        with stepprof.profile_step(step, role="actor"), stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
# the driver sleeps while its samples are generated
job.write(None, true=[("sleep", None)])
