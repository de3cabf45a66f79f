"""Measure the cost of a region with each backend: never selected, attached and idle, and recording.
It is compared with torch's own range. Each backend has its own process, because torch and its
profiler stay loaded. Spans are off (`calls` measures them), so that only the backend's cost
remains. nsys and npu are measured with their own tools: by `nsys_regions`, and by `npu_regions`
where torch_npu is installed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec

from benchmarks.apart import ask, ask_a_card, call_rows
from benchmarks.figures import Row
from benchmarks.timing import Effort, Subject, time_subjects

__all__ = ["measure_regions"]

BACKENDS = ("null", "torch", "memory", "torch+memory")
MODES = {"off": "never selected", "idle": "armed, idle", "recording": "recording"}
OURS = "with region(name)"


def measure_regions(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows for each backend that can record here, and the reasons for missing ones."""
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for backend in BACKENDS:
        if backend != "null" and find_spec("torch") is None:
            absent[f"a region under {backend}"] = "torch is not installed"
            continue
        of_a_card = ask_a_card if "memory" in backend else ask
        found, reason = of_a_card("benchmarks.devices", backend, str(int(quick)), timeout=300)
        if reason is not None:
            absent[f"a region under {backend}"] = reason
        rows += found
    return rows, absent


def _measured(backend: str, *, quick: bool) -> dict[str, object]:
    from stepprof import Config
    from stepprof.backends import make_backend

    made = make_backend(Config(backend=backend.split("+")).policy(None))
    reason = made.probe()
    if reason is not None:
        return {"absent": reason}
    if "memory" in backend:
        import torch

        torch.cuda.init()
    return {"rows": [asdict(row) for mode in MODES for row in _rows(backend, mode, quick=quick)]}


def _rows(backend: str, mode: str, *, quick: bool) -> list[Row]:
    import stepprof

    subjects = _subjects(stepprof)
    # a torch capture stores 4 kB for each range
    effort = (
        Effort.quick()
        if quick
        else Effort(rounds=7, seconds=0.004)
        if mode == "recording"
        else Effort.usual()
    )
    steps = {"off": "1000000", "idle": "3", "recording": "2"}[mode]
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        config = {"output_dir": folder, "steps": steps, "backend": backend.split("+"), "spans": False}
        stepprof.init({**config, "min_free_memory": "none"}, rank=0, world_size=1)
        try:
            if mode == "recording":
                with stepprof.profile_step(2):
                    assert stepprof.state().status == "recording"
                    timed = time_subjects(subjects, effort)
            else:
                with stepprof.profile_step(2):
                    pass
                assert stepprof.state().status == ("armed" if mode == "idle" else "idle")
                timed = time_subjects(subjects, effort)
        finally:
            stepprof.shutdown()
    return call_rows(f"region, backend {backend}, {MODES[mode]}", subjects, timed, OURS)


def _subjects(stepprof: object) -> list[Subject]:
    names: dict[str, object] = {"stepprof": stepprof}
    subjects = [
        Subject(OURS, 'with stepprof.region("bench"):\n    pass', names, ours=True),
        Subject(
            "async with region(name)", 'async with stepprof.region("bench"):\n    pass', names, ours=True
        ),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        names["record_function"] = torch.profiler.record_function
        subjects.append(
            Subject("torch record_function(name)", 'with record_function("bench"):\n    pass', names)
        )
    return subjects


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], quick=sys.argv[2] == "1")))
