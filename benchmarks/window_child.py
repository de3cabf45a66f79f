"""One loop of one variant in a process of its own: ``python -m benchmarks.window_child VARIANT …``.

The loop is the same in every variant: steps of many small operations, one of which is recorded, and
which last long enough for a concurrent export to end. One-time costs of a process (torch's first
profiler, its imports) are paid before the clock starts, in every variant.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch._inductor.config

RECORDED_STEP = 2

Window = Callable[[int], AbstractContextManager[object]]


def _once(recorded: Callable[[], AbstractContextManager[object]]) -> Window:
    return lambda step: recorded() if step == RECORDED_STEP else contextlib.nullcontext()


def _none(_: Path) -> tuple[Window, Callable[[], None]]:
    return lambda step: contextlib.nullcontext(), lambda: None


def _torch(_: Path) -> tuple[Window, Callable[[], None]]:
    """Use torch's own record and bare stop: the minimum for any recording with torch. Nothing is exported."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    return _once(lambda: torch.profiler.profile(activities=activities)), lambda: None


def _stepprof(folder: Path) -> tuple[Window, Callable[[], None]]:
    import stepprof

    stepprof.init(
        {"output_dir": str(folder), "steps": str(RECORDED_STEP), "torch": {"activities": ["cpu"]}},
        rank=0,
        world_size=1,
    )
    return lambda step: stepprof.profile_step(step, role="actor"), stepprof.shutdown


def _verl(folder: Path) -> tuple[Window, Callable[[], None]]:
    from verl.utils.profiler import DistProfiler, ProfilerConfig
    from verl.utils.profiler.config import TorchProfilerToolConfig

    options = TorchProfilerToolConfig(contents=["cpu"])
    config = ProfilerConfig(
        tool="torch", enable=True, all_ranks=True, save_path=str(folder), tool_config=options
    )
    profiler = DistProfiler(rank=0, config=config, tool_config=options)

    @contextlib.contextmanager
    def window() -> Iterator[None]:
        profiler.start(role="actor", profile_step=str(RECORDED_STEP))
        yield
        profiler.stop()

    return _once(window), lambda: None


VARIANTS = {"none": _none, "torch": _torch, "stepprof": _stepprof, "verl": _verl}


def run(variant: str, *, operations: int, steps: int, folder: Path) -> dict[str, object]:
    """Run the loop. Return seconds of the main thread by the wall clock and by its processor time,
    step by step and for the end.
    """
    torch.set_num_threads(1)
    tensor = torch.zeros(8)

    def work(count: int) -> None:
        for _ in range(count):
            tensor.add_(1)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        work(100)
    window, finish = VARIANTS[variant](folder)
    work(operations)

    readings = [(time.perf_counter(), time.thread_time(), time.process_time())]

    def read() -> None:
        readings.append((time.perf_counter(), time.thread_time(), time.process_time()))

    for step in range(1, steps + 1):
        with window(step):
            work(operations)
        read()
    pending = _pending(variant)
    finish()
    read()
    first, last = readings[0], readings[-1]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = [
        path for path in folder.rglob("*") if ".trace.json" in path.name or path.name.endswith(".json.gz")
    ]
    return {
        "variant": variant,
        "wall_seconds": last[0] - first[0],
        "thread_seconds": last[1] - first[1],
        "process_seconds": last[2] - first[2],
        "children_seconds": children.ru_utime + children.ru_stime,
        "step_seconds": [after[0] - before[0] for before, after in itertools.pairwise(readings[:-1])],
        "finish_seconds": last[0] - readings[-2][0],
        "pending_before_finish": pending,
        "artifact_bytes": sum(path.stat().st_size for path in files),
    }


def _pending(variant: str) -> list[str]:
    if variant != "stepprof":
        return []
    import stepprof

    return list(stepprof.state().pending_exports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variant", choices=sorted(VARIANTS))
    parser.add_argument("--operations", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    result = run(
        arguments.variant, operations=arguments.operations, steps=arguments.steps, folder=arguments.folder
    )
    arguments.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
