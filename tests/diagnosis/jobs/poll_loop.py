"""The driver looks every 0.8 s whether the rollout is done: it is done after 0.3 s."""

import threading
import time

from planted import Job, compute

import stepprof

job = Job()
done_at = 0.0


def generate(done: threading.Event) -> None:
    global done_at
    with stepprof.bind(sample="s0"), stepprof.region("generate"):
        compute(0.3)
    done_at = time.perf_counter()
    done.set()


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        done = threading.Event()
        threading.Thread(target=generate, args=(done,)).start()
        with stepprof.region("wait_for_rollout"):
            if job.faulty:
                while not done.is_set():
                    time.sleep(0.8)
            else:
                done.wait()
            job.planted(time.perf_counter() - done_at)
        with stepprof.region("update"):
            compute(0.4)
stepprof.shutdown()
job.write("poll", process="rank 0", region="wait_for_rollout", true=[("threads", "wait_for_rollout")])
