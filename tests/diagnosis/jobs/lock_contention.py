"""A thread that writes metrics holds the lock that the update needs."""

import threading
import time

from planted import Job, compute

import stepprof

job = Job()
lock = threading.Lock()


def write_metrics(held: threading.Event) -> None:
    with lock:
        held.set()
        time.sleep(0.5 if job.faulty else 0.0)  # a slow answer of the metrics' server


stepprof.init(**job.init())
for step in job.steps:
    with stepprof.profile_step(step), job.step(step):
        held = threading.Event()
        writer = threading.Thread(target=write_metrics, args=(held,))
        writer.start()
        held.wait()
        with stepprof.region("update"):
            with job.plant():
                lock.acquire()
            lock.release()
            compute(0.5)
        writer.join()
stepprof.shutdown()
job.write("lock", process="rank 0", region="update", why="`write_metrics` (time.sleep)")
