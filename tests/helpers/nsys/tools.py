"""Build the stand-ins for nsys, NVTX's tool and libcudart, and read their logs. A missing compiler
is a failure: nothing here is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Tools:
    """The paths of the stand-ins."""

    folder: Path

    @property
    def nsys(self) -> str:
        return str(self.folder / "nsys")

    @property
    def injection(self) -> str:
        return str(self.folder / "injection.so")

    @property
    def cudart(self) -> str:
        return str(self.folder / "libcudart.so")

    def path(self) -> str:
        """Return a PATH on which `nsys` is the stand-in and `python` is this one."""
        return os.pathsep.join(
            [str(self.folder), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        )


def build(folder: Path) -> Tools:
    """Compile the two libraries, and install the executable."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests of nsys compile two small libraries: install gcc"
    for source, made in (("injection.c", "injection.so"), ("cudart.c", "libcudart.so")):
        subprocess.run(
            [
                compiler,
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                folder / made,
                HERE / source,
            ],
            check=True,
        )
    script = folder / "nsys"
    script.write_text(f"#!{sys.executable} -SE\n{(HERE / 'nsys.py').read_text()}")
    script.chmod(0o755)
    return Tools(folder)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the tool's log about NVTX's domain stepprof."""
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in events if event["domain"] == "stepprof"]


@dataclass
class Closed:
    """The ranges of a log, after `closed` has checked that all of them were closed in order."""

    pushed: Counter[str]
    started: Counter[str]
    threads: dict[str, set[int]]
    events: list[dict[str, Any]]

    def first(self, message: str) -> dict[str, Any]:
        return next(
            event for event in self.events if event["op"] in ("push", "start") and event["message"] == message
        )

    def category(self, message: str) -> str:
        names = {event["category"]: event["message"] for event in self.events if event["op"] == "category"}
        return names[self.first(message)["category"]]


def closed(events: list[dict[str, Any]]) -> Closed:
    """Fail unless each push is popped by its thread, innermost first, and each start is ended once."""
    stacks: dict[int, list[str]] = defaultdict(list)
    open_ranges: dict[int, str] = {}
    threads: dict[str, set[int]] = defaultdict(set)
    pushed: Counter[str] = Counter()
    started: Counter[str] = Counter()
    for event in events:
        if event["op"] == "push":
            stacks[event["thread"]].append(event["message"])
            pushed[event["message"]] += 1
        elif event["op"] == "pop":
            assert stacks[event["thread"]], f"popped from an empty stack: {event}"
            stacks[event["thread"]].pop()
        elif event["op"] == "start":
            assert event["range"] not in open_ranges
            open_ranges[event["range"]] = event["message"]
            started[event["message"]] += 1
        elif event["op"] == "end":
            del open_ranges[event["range"]]
        if event["op"] in ("push", "start"):
            threads[event["message"]].add(event["thread"])
    assert not open_ranges, open_ranges
    assert not any(stacks.values()), dict(stacks)
    return Closed(pushed, started, threads, events)
