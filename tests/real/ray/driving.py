"""Helpers, other than fixtures, that the Ray tests share."""

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
    """What a process imports from that has to do with the tests."""
    return os.pathsep.join([str(plugin), str(HERE), str(HERE.parents[1] / "helpers"), str(HERE.parents[2])])


def fragments(folder):
    """All fragments of a step by name."""
    return {path.name: json.loads(path.read_text()) for path in (folder / "manifest").glob("*.json")}


def drive(work, *, wait=True, timeout=60):
    """Run a driver's call where they run; its result, or its future."""
    future = remote_loop().submit(work)
    return future.result(timeout) if wait else future


def kill(handle, timeout=30):
    """End an actor for good, and wait until it has ended: `ray.kill` alone returns before, and calls may still overtake it."""
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


def until(is_so, timeout=60):
    """Wait until something is so."""
    deadline = time.monotonic() + timeout
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Windows:
    """Makes the windows that a driver is given."""

    def __init__(self, session):
        self.session = session
        self.made = 0

    def make(self, step, role="rollout", *, replica=0, stem=None, **options):
        """A window with an empty folder of its own; ``stem=""`` for ranks, who have none."""
        self.made += 1
        run = self.session.path
        if stem == "":
            folder = run
        else:
            folder, stem = run / step_folder(step), f"{role}/replica-{replica}.{self.made}"
            (folder / stem).mkdir(parents=True)
        metadata = {"run_id": self.session.run_id, "step": step, "role": role}
        return EngineWindow(Window(step, role), replica, folder, stem, EngineOptions(), metadata, **options)
