"""Provide the helpers of the Ray tests that are not fixtures."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from stepprof.config.options.engine import EngineOptions
from stepprof.remote.base import EngineWindow
from stepprof.remote.loop import remote_loop
from stepprof.run.layout import step_folder
from stepprof.run.model import Window

HERE = Path(__file__).parent


def workers_path(plugin):
    """Return the import path of a worker process for the tests."""
    return os.pathsep.join([str(plugin), str(HERE), str(HERE.parents[1] / "helpers"), str(HERE.parents[2])])


def fragments(folder):
    """Return all fragments of a step by name."""
    return {path.name: json.loads(path.read_text()) for path in (folder / "manifest").glob("*.json")}


def drive(work, *, wait=True, timeout=200):
    """Run a driver's call on the remote loop. Return its result, or its future."""
    future = remote_loop().submit(work)
    return future.result(timeout) if wait else future


def kill(handle, timeout=30):
    """Kill an actor permanently and wait until it has ended. `ray.kill` returns earlier, and later
    calls may still reach the actor.
    """
    import ray

    ray.kill(handle)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            ray.get(handle.__ray_ready__.remote(), timeout=timeout)
        except ray.exceptions.RayActorError:
            return
        time.sleep(0.02)
    raise AssertionError("the actor has not ended")


def until(is_so, timeout=200):
    """Wait until a condition is true."""
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Windows:
    """Makes windows for the tests of drivers."""

    def __init__(self, session):
        self.session = session
        self.made = 0

    def make(self, step, role="rollout", *, replica=0, stem=None, **options):
        """Make a window with its own empty folder; ``stem=""`` for ranks, which have no folder."""
        self.made += 1
        run = self.session.path
        if stem == "":
            folder = run
        else:
            folder, stem = run / step_folder(step), f"{role}/replica-{replica}.{self.made}"
            (folder / stem).mkdir(parents=True)
        metadata = {"run_id": self.session.run_id, "step": step, "role": role}
        return EngineWindow(Window(step, role), replica, folder, stem, EngineOptions(), metadata, **options)
