"""Provide a framework of a few lines and an adapter for it, to test the mechanism of adapters
without a real framework.
"""

from __future__ import annotations

from pathlib import Path

FRAMEWORK = """
import contextlib

CALLS = []
STEPS = 4

class Timer:
    def __init__(self, name):
        self.name = name
    def __enter__(self):
        return self
    def __exit__(self, kind, error, traceback):
        return False

class Trainer:
    global_step = 0
    def fit(self, fail_at=None):
        for _ in range(STEPS):
            self.step(fail_at)
            self.global_step += 1
    def step(self, fail_at):
        with Timer("generate"):
            CALLS.append("generate")
        with Timer("update"):
            CALLS.append("update")
            if self.global_step + 1 == fail_at:
                raise RuntimeError("out of luck")

async def serve(request):
    return request
"""
ADAPTER = """
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.training_loop import TrainingLoop, close_timer, open_timer

loop = TrainingLoop("fake")

def fit_ends(_, error):
    loop.end(error)

def step_begins(trainer, args, kwargs):
    loop.begin(trainer.global_step + 1)

def timer_begins(timer, args, kwargs):
    timer.opened = open_timer(timer.name, {"generate": "rollout"}.get(timer.name))

def timer_ends(timer, args, kwargs):
    close_timer(timer.__dict__.pop("opened", None), args[1])

def attach(patches):
    patches.around("framework:Trainer.fit", None, fit_ends)
    patches.around("framework:Trainer.step", step_begins)
    patches.around("framework:Timer.__enter__", timer_begins, timer=True)
    patches.around("framework:Timer.__exit__", timer_ends, timer=True)

NEEDS = {"framework:Trainer.step": ("fail_at",), "framework:Trainer.fit": (), "framework:Timer.__enter__": (), "framework:Timer.__exit__": ()}
FAKE = Adapter("fake", "framework", attach, NEEDS, ("structlog",), ">=1")
"""


def write(folder: Path) -> None:
    """Write `framework` and its adapter `adapted` into a folder from which scripts import."""
    (folder / "framework.py").write_text(FRAMEWORK)
    (folder / "adapted.py").write_text(ADAPTER)
