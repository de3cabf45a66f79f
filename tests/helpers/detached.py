"""Run a real engine in a detached Ray actor, which outlives the driver of its job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driven import begin

import stepprof

JOB = """
import sys, time
from pathlib import Path
import ray, stepprof
from driven import begin

ray.init(address=sys.argv[1], namespace="engines", logging_level="ERROR", log_to_driver=False)
handle = ray.get_actor("engine")
begin(Path.cwd(), steps="2", engine_start_timeout_seconds=60)
stepprof.attach(handle, role="rollout", find="engine")
stepprof.profile_step(2, role="rollout").start()
ray.get(handle.generate.remote(3))
print("recording", flush=True)
time.sleep(600)
"""


@contextmanager
def detached(holder: type, arguments: tuple[str, ...], env: Mapping[str, str]) -> Iterator[Any]:
    """Yield the handle of a detached actor of this class, in a separate Ray whose workers have
    these variables.
    """
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        quiet = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
        ray.init(address="local", num_cpus=2, namespace="engines", **quiet)
        try:
            options = {"name": "engine", "lifetime": "detached", "num_cpus": 0}
            handle = ray.remote(holder).options(**options).remote(*arguments)
            ray.get(handle.generate.remote(1))
            yield handle
            ray.kill(handle)
        finally:
            ray.shutdown()


def entry_of(folder: Path, step: int) -> dict[str, Any]:
    """Return the entry of the only engine in a step of a job's run."""
    (path,) = (folder / "run" / f"step-{step:06d}" / "manifest").glob("rollout-engines-*.json")
    (entry,) = json.loads(path.read_text())["engines"]
    found: dict[str, Any] = entry
    return found


def kill_a_job(handle: Any, first: Path, second: Path, env: Mapping[str, str]) -> None:
    """Kill a job with SIGKILL inside its window, while another job finds the engine busy. The other
    job records its next step.

    Args:
        handle: the actor, whose ``engine`` generates for `generate`.
        first: the folder in which the killed job runs. It records step 2, with 3 tokens.
        second: the folder of the run of this process. It records step 3, with 4 tokens.
        env: the variables of the first job.
    """
    import ray

    address = ray.get_runtime_context().gcs_address
    for folder in (first, second):
        folder.mkdir()
    with (
        (first / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-c", JOB, address],
            cwd=first,
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as job,
    ):
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "recording\n", (first / "log").read_text()
            begin(second)
            stepprof.attach(handle, role="rollout", find="engine")
            with stepprof.profile_step(2, role="rollout"):
                pass
        finally:
            job.kill()
    try:
        deadline = time.monotonic() + 100
        while entry_of(second, 2)["status"] != "failed":  # the entry is written a moment after the refusal
            assert time.monotonic() < deadline, entry_of(second, 2)
            time.sleep(0.1)
        refused = entry_of(second, 2)
        assert refused["health"] == "busy", refused
        assert f"run run, step 2, rollout (process {job.pid} on" in refused["error"]
        assert entry_of(first, 2)["status"] == "lost", entry_of(first, 2)
        with stepprof.profile_step(3, role="rollout"):
            ray.get(handle.generate.remote(4))
    finally:
        stepprof.shutdown()
    following = entry_of(second, 3)
    assert (following["status"], following["health"], following["error"]) == ("complete", "ok", None)
