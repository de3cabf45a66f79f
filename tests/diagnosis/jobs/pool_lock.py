"""The eight threads of a pool wait for one lock of their tokenizer. None of them has a region."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from planted import Job, compute

import stepprof

job = Job()
lock = threading.Lock() if job.faulty else nullcontext()


def tokenize(text: int) -> list[int]:
    with lock:
        time.sleep(0.025)
    return [text]


stepprof.init(**job.init())
with ThreadPoolExecutor(40 if not job.faulty else 8) as pool:
    for step in job.steps:
        with stepprof.profile_step(step), job.step(step):
            with stepprof.region("encode"), job.plant():
                list(pool.map(tokenize, range(40)))
            with stepprof.region("update"):
                compute(1.5)
stepprof.shutdown()
job.write("lock", process="rank 0", region="encode", why="lock.__enter__")
