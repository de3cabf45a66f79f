"""Measure stepprof side by side with another version of it: ``--only versions --against FOLDER``.
FOLDER is a work tree of that version (``git worktree add FOLDER COMMIT``).

Each subject is one process per version. The processes alternate in short bursts, so that a slow
phase of the machine affects all alike. The figures of a call are minima over several processes, one
after the other. The memory layout of a process changes them by up to 5 %. Those of a recorded
window are lower quartiles, because each window is measured by itself.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.child import REPOSITORY, cpu_seconds, environment
from benchmarks.figures import Figure, Row

__all__ = ["measure_versions"]

Sample = dict[str, float]
"""One measurement by each clock, in nanoseconds."""

NO_SESSION = '{"steps": "none", "spans": False}'
NOT_SELECTED = '{"steps": "every 1000000000", "backend": "null"}'
CALLS = {
    "with region(...), no session": (NO_SESSION, 'with stepprof.region("bench"):\n    pass'),
    "with profile_step(...), no session": (
        NO_SESSION,
        'with stepprof.profile_step(7, role="actor"):\n    pass',
    ),
    "with region(...), its span kept": (NOT_SELECTED, 'with stepprof.region("bench"):\n    pass'),
    "a window that is not selected, its span kept": (
        NOT_SELECTED,
        'with stepprof.profile_step(7, role="actor"):\n    pass',
    ),
}
WINDOWS = {
    "a recorded window, backend null": '{"steps": "every 1", "backend": "null", "export": "inline"}',
    "a recorded window, backend torch": '{"steps": "every 1", "export": "inline", "torch": {"activities": ["cpu"]}}',
}
CLOCKS = {"thread": "processor time of the thread", "wall": "wall"}

_CALLS = """
import json, sys, tempfile, time
import stepprof
loop = {}
body = sys.argv[2].replace("\\n", "\\n        ")
exec(f'''
def loop(times):
    began = clock()
    for _ in times:
        {body}
    return clock() - began
''', {"stepprof": stepprof, "clock": time.thread_time_ns}, loop)
with tempfile.TemporaryDirectory() as folder:
    stepprof.init({"output_dir": folder, **eval(sys.argv[1])}, rank=0, world_size=1)
    for count in map(int, sys.stdin):
        print(json.dumps([{"thread": loop["loop"](range(count)) / count}]), flush=True)
    stepprof.shutdown()
"""

_WINDOWS = """
import itertools, json, sys, tempfile, time
import stepprof
steps = itertools.count(1)

def window():
    wall, thread = time.perf_counter_ns(), time.thread_time_ns()
    with stepprof.profile_step(next(steps), role="actor"):
        pass
    return {"thread": time.thread_time_ns() - thread, "wall": time.perf_counter_ns() - wall}

with tempfile.TemporaryDirectory() as folder:
    stepprof.init({"output_dir": folder, **eval(sys.argv[1])}, rank=0, world_size=1)
    for count in map(int, sys.stdin):
        found = []
        for _ in range(count):
            found.append(window())
            time.sleep(0.04)  # the background thread writes the manifest, the sampler goes to sleep
        print(json.dumps(found), flush=True)
    stepprof.shutdown()
"""


@dataclass(frozen=True)
class Version:
    """A work tree, and keys to add to the configuration."""

    name: str
    tree: Path
    more: str = "{}"


def measure_versions(against: Path | None, *, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of the other version and of this one. Each ratio is to the other version."""
    if against is None:
        return [], {"versions": "--against names no work tree of another version"}
    other, this = Version(f"in {against.name}", against.resolve()), Version("this version", REPOSITORY)
    bare = Version("this version, evidence off", REPOSITORY, '{"evidence": False}')
    rows = _import_rows(other, this, rounds=2 if quick else 40)
    for name, (config, statement) in CALLS.items():
        script = (_CALLS, config, statement)
        bursts, count, processes = (2, 100, 1) if quick else (60, 2_000, 9)
        found = _measure([other, this], script, bursts, count, processes)
        rows += _rows(name, "ns", _of(found, "thread"), min)
    for name, config in WINDOWS.items():
        if "torch" in config and find_spec("torch") is None:
            continue
        bursts, count = (2, 2) if quick else (25, 8)
        found = _measure([other, this, bare], (_WINDOWS, config), bursts, count)
        for clock, title in CLOCKS.items():
            rows += _rows(f"{name}: {title}", "ms", _of(found, clock, 1e-6), _quartile)
    return rows, {}


def _import_rows(other: Version, this: Version, rounds: int) -> list[Row]:
    whole: dict[str, list[float]] = {other.name: [], this.name: []}
    bare: list[float] = []
    for _ in range(rounds):
        for version in (other, this):
            whole[version.name].append(1e3 * cpu_seconds("-c", "import stepprof", tree=version.tree))
            bare.append(1e3 * cpu_seconds("-c", "pass", tree=version.tree))
    added = {name: [each - min(bare) for each in samples] for name, samples in whole.items()}
    return _rows("import stepprof, added to python -c pass", "ms", added, min)


def _measure(
    versions: Sequence[Version], script: Sequence[str], bursts: int, count: int, processes: int = 1
) -> dict[str, list[Sample]]:
    """Run bursts of this many calls, alternately in a process of each version. Return the samples
    of each version.

    Args:
        processes: the number of processes of each version, one after the other.
    """
    found: dict[str, list[Sample]] = {version.name: [] for version in versions}
    for _ in range(processes):
        with contextlib.ExitStack() as stack:
            running = [(each.name, stack.enter_context(_started(each, script))) for each in versions]
            for _, process in running:  # not counted: one-time costs of a process
                _burst(process, count)
            for _ in range(bursts):
                for name, process in running:
                    found[name] += _burst(process, count)
                running = running[1:] + running[:1]
    return found


@contextlib.contextmanager
def _started(version: Version, script: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    code, config, *rest = script
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, f"{{**{config}, **{version.more}}}", *rest],
            cwd=folder,
            env=environment(version.tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with process:
            yield process
        if process.returncode:
            raise RuntimeError(f"{version.name} ended with {process.returncode}")


def _burst(process: subprocess.Popen[str], count: int) -> list[Sample]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    samples: list[Sample] = json.loads(process.stdout.readline())
    return samples


def _quartile(samples: Sequence[float]) -> float:
    return statistics.quantiles(samples, n=4, method="inclusive")[0]


def _of(found: Mapping[str, list[Sample]], clock: str, scale: float = 1.0) -> dict[str, list[float]]:
    return {name: [scale * sample[clock] for sample in samples] for name, samples in found.items()}


def _rows(
    group: str, unit: str, found: Mapping[str, list[float]], value: Callable[[Sequence[float]], float]
) -> list[Row]:
    rows: list[Row] = []
    for name, samples in found.items():
        figure, one = Figure.of(samples), value(samples)
        ratio = one / rows[0].value if rows else 1.0
        rows.append(Row(group, name, unit, one, figure.median, figure.spread, ratio=ratio))
    return rows
