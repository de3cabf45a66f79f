"""The new weights are sent to the rollout process, which copies them slowly, while nothing else runs."""

import multiprocessing
import time
from multiprocessing.connection import Connection

from planted import Job, compute

import stepprof

job = Job()
weights = bytes(32 << 20)


def rollout(pipe: Connection) -> None:
    while pipe.recv_bytes():
        time.sleep(0.08 if job.faulty else 0.0)
        pipe.send("loaded")


if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=rollout, args=(theirs,))
    process.start()
    stepprof.init(**job.init())
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("update"):
                compute(0.5)
            with stepprof.region("sync_weights"), job.plant():
                for _ in range(5 if job.faulty else 1):
                    ours.send_bytes(weights if job.faulty else b"only what has changed")
                    ours.recv()
    ours.send_bytes(b"")
    process.join()
    stepprof.shutdown()
    job.write("weight_sync", process="rank 0", region="sync_weights")
