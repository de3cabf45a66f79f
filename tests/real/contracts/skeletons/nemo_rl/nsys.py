"""Provide NeMo-RL's switch of its own profiling, written for stepprof's tests, with its names."""

import os

NRL_NSYS_WORKER_PATTERNS = os.environ.get("NRL_NSYS_WORKER_PATTERNS", "")
NRL_NSYS_PROFILE_STEP_RANGE = os.environ.get("NRL_NSYS_PROFILE_STEP_RANGE", "")


def maybe_gpu_profile_step(policy, step):
    assert bool(NRL_NSYS_WORKER_PATTERNS) == bool(NRL_NSYS_PROFILE_STEP_RANGE)
    if NRL_NSYS_WORKER_PATTERNS:
        print("own profiler", step)
