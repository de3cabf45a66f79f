"""The training loop waits for the next batch: its only loader is slow."""

import queue
import threading
import time

from planted import Job, compute

import stepprof

job = Job()
batches: "queue.Queue[int]" = queue.Queue()
wanted: "queue.Queue[bool]" = queue.Queue()


def load() -> None:
    while wanted.get():
        time.sleep(0.5 if job.faulty else 0.01)  # a remote file system
        batches.put(0)


stepprof.init(**job.init())
loader = threading.Thread(target=load)
loader.start()
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        wanted.put(True)
        with stepprof.region("next_batch"), job.plant():
            batches.get()
        with stepprof.region("update"):
            compute(0.5)
wanted.put(False)
loader.join()
stepprof.shutdown()
job.write("data", process="rank 0", region="next_batch")
