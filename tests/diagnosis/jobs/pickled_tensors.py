"""A dict of tensors is pickled: the pickler calls back into `copyreg` and torch for each of them."""

import gc
import pickle

import torch
from planted import Job, compute

import stepprof

job = Job()
gc.disable()  # collections inside of the call are a finding of their own, of up to a quarter of it
state = {f"layer.{number}": torch.zeros(8) for number in range(1500)}


def send() -> None:
    """Send to each of four trainers."""
    for _ in range(4):
        pickle.dumps(state)


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        with stepprof.region("rollout"):
            compute(0.3)
        with stepprof.region("to_trainer"), job.plant():
            if job.faulty:
                send()
        with stepprof.region("update"):
            compute(0.3)
stepprof.shutdown()
job.write("pickle", process="rank 0", region="to_trainer", why="pickle.dumps in send")
