"""Test the interface of a framework without a wheel: what is read from a clone, and which names of
an adapter it lacks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from interface import git, missing_in_interface

from stepprof.integrations.adapter import Adapter

LOOP = """
from dataclasses import dataclass

LIMIT = 3

def train(args, *, epochs=1, **options):
    with timer("generation"), Timer(name="step"):
        pass

class Timer:
    KIND = "wall"
    def __init__(self, name):
        self.began = None
    async def start(self, label): ...

@dataclass
class Settings:
    steps: int = 1

try:
    import quick
except ImportError:
    def slow(path): ...
"""


@pytest.fixture
def clone(tmp_path):
    """Return a clone with one commit and a change that is not committed."""
    package = tmp_path / "frame" / "work"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def helper(): ...\n")
    (package / "loop.py").write_text(LOOP)
    git(str(tmp_path), "init", "--quiet")
    git(str(tmp_path), "add", ".")
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    git(str(tmp_path), *identity, "commit", "--quiet", "--message", "one")
    (package / "loop.py").write_text("def changed(): ...\n")
    return tmp_path


def command(clone, *modules):
    """Run the command and return what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "tests.real.contracts.interface", str(clone), "owner/frame", *modules],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def found(clone):
    """Return the interface of the modules in the clone."""
    return json.loads(command(clone, "frame.work", "frame.work.loop").stdout)


class TestInterface:
    def test_source(self, clone, found) -> None:
        """The interface names the repository, the commit and the date from which it was read."""
        assert (found["source"], found["commit"]) == (
            "owner/frame",
            git(str(clone), "rev-parse", "HEAD").strip(),
        )
        assert len(found["date"]) == len("2026-01-01")

    def test_modules(self, found) -> None:
        """Functions and methods have parameters, and classes also have attributes. Constants are
        names without entries.
        """
        assert found["modules"] == {
            "frame.work": {"helper": []},
            "frame.work.loop": {
                "LIMIT": [],
                "train": ["args", "epochs"],
                "Timer": ["name", "KIND", "began"],
                "Timer.__init__": ["name"],
                "Timer.start": ["label"],
                "Settings": ["steps"],
                "slow": ["path"],
            },
        }

    def test_timers(self, found) -> None:
        """The interface has the names of the timers."""
        assert found["timers"] == {"frame.work.loop": ["generation", "step"]}

    def test_unknown_module(self, clone) -> None:
        """The command refuses an unknown module and names it."""
        done = command(clone, "frame.gone")
        assert (done.returncode, done.stderr.strip()) == (
            1,
            "module = frame.gone: must be one of the clone's",
        )


def test_missing(found) -> None:
    """The missing module, name or parameter of an adapter is named."""
    needs = {
        "frame.work.loop:train": ("args", "model"),
        "frame.work.loop:Timer.start": ("label",),
        "frame.work.loop:Timer": ("began",),
        "frame.work.loop:Timer.stop": (),
        "frame.other:train": (),
    }
    adapter = Adapter("frame", "frame", lambda _: None, needs, ("frame",), ">=1")
    assert missing_in_interface(adapter, found) == [
        "frame.work.loop:train(model)",
        "frame.work.loop:Timer.stop",
        "frame.other:train",
    ]
