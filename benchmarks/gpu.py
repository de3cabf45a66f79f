"""Measure what a recorded step costs on a GPU, for each backend and kind of export. The figures are
how long training stands still, and how much slower the step is.

``python -m benchmarks --only gpu`` runs it on a machine with a GPU; other machines report that
there is none. A real model (a transformer of 8 layers) trains. Every other step is recorded, so
that slow phases of the machine affect both kinds. A case that cannot be measured on a card is
reported with its reason.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.apart import ask_a_card
from benchmarks.figures import Figure, Row

__all__ = ["measure_gpu"]

CASES: dict[str, dict[str, Any]] = {
    "torch, export in place": {"backend": "torch", "export": "inline"},
    "torch, export in a child": {"backend": "torch", "export": "fork"},
    "memory": {"backend": "memory"},
    "memory, C++ stacks": {"backend": "memory", "memory": {"stacks": "all"}},
    "torch and memory": {"backend": ["torch", "memory"]},
    "null": {"backend": "null"},
    "torch, 50 micro-batches a step, export in place": {"backend": "torch", "export": "inline"},
    "torch, 50 micro-batches a step, export in a child": {"backend": "torch", "export": "fork"},
}
MICRO_BATCHES = re.compile(r"(\d+) micro-batches")

NO_DEVICE = "no CUDA device"
TIMEOUT_SECONDS = 900


def measure_gpu(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of each case, one process each, and the reasons for missing cases."""
    if find_spec("torch") is None:
        return [], {"gpu": "torch is not installed"}
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for case in CASES:
        found, reason = ask_a_card("benchmarks.gpu", case, str(int(quick)), timeout=TIMEOUT_SECONDS)
        if reason == NO_DEVICE:
            return [], {"gpu": reason}
        rows += found
        if reason is not None:
            absent[f"gpu, {case}"] = reason
    return rows, absent


def measured(case: str, *, quick: bool, device: str = "cuda") -> list[Row]:
    """Train, record every other step, and return rows from the manifests."""
    import torch

    import stepprof
    from stepprof.run.summary import held_seconds

    several = MICRO_BATCHES.search(case)
    micro_batches = 1 if several is None else 2 if quick else int(several[1])
    steps = 6 if quick else 40 if several is None else 8
    step_of = _trainer(torch, device, micro_batches, quick=quick)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        config = {"output_dir": folder, "steps": "every 2", "min_free_memory": "none", **CASES[case]}
        session = stepprof.init(config, run_id="bench", rank=0, world_size=1)
        try:
            for _ in range(3):
                step_of()
            for step in range(1, steps + 1):
                with stepprof.profile_step(step, role="actor"):
                    began = time.perf_counter()
                    step_of()
                    seconds[step % 2 == 0].append(time.perf_counter() - began)
        finally:
            stepprof.shutdown()
        if device != "cpu" and "torch" in config["backend"]:
            _look_for_kernels(Path(session.path or folder))
        windows = [
            window
            for path in Path(session.path or folder).glob("step-*/manifest/*.json")
            for window in json.loads(path.read_text())["windows"]
        ]
    failed = [window["error"] for window in windows if window["status"] != "complete"]
    if failed:
        raise RuntimeError(f"{case}: {failed[0]}")
    bare, recorded = Figure.of(seconds[False]), Figure.of(seconds[True])
    name = f"recorded step on {_called(torch, device)}, {case}"
    held = Figure.of([held_seconds(window) for window in windows])
    export = Figure.of([window["export_seconds"] or 0.0 for window in windows])
    size = Figure.of([sum(artifact["bytes"] for artifact in window["artifacts"]) for window in windows])
    return [
        _row(name, "step, not recorded", "ms", bare, factor=1e3),
        _row(name, "step, recorded", "ms", recorded, factor=1e3, ratio=recorded.median / bare.median),
        _row(name, "training stands still", "ms", held, factor=1e3),
        _row(name, "export job", "ms", export, factor=1e3),
        _row(name, "artifacts", "MB", size, factor=1e-6),
    ]


def _look_for_kernels(run: Path) -> None:
    """Raise RuntimeError if a trace has no kernels: its figures would be those of the host only."""
    trace = next(iter(run.glob("step-*/actor/*.trace.json.gz")), None)
    if trace is not None and b'"kernel"' not in gzip.decompress(trace.read_bytes()):
        raise RuntimeError("the traces have no kernels; `stepprof doctor` says why")


def _row(
    group: str, name: str, unit: str, figure: Figure, *, factor: float, ratio: float | None = None
) -> Row:
    return Row(group, name, unit, figure.minimum * factor, figure.median * factor, figure.spread, ratio=ratio)


def _trainer(torch: Any, device: str, micro_batches: int, *, quick: bool) -> Any:
    """Return a function that trains a transformer for one step. Each micro-batch uses the same
    batch.
    """
    torch.manual_seed(0)
    width, layers, batch, length = (64, 2, 2, 16) if quick else (1024, 8, 16, 256)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randn(batch, length, width, device=device)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(micro_batches):
            loss = model(tokens).square().mean()
            loss.backward()
        optimizer.step()
        return float(loss.detach())  # waits for the device

    return step


def _called(torch: Any, device: str) -> str:
    if device == "cpu":
        return "the CPU"
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {_driver()}"
    return f"{torch.cuda.get_device_name(0)} ({versions})"


def _driver(path: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version of NVIDIA's driver from a line of text."""
    try:
        found = re.search(r"\s(\d+(?:\.\d+)+)\s", path.read_text(encoding="utf-8"))
    except OSError:  # another system, or another vendor's card
        return "unknown"
    return found[1] if found else "unknown"


def _measured(case: str, *, quick: bool) -> dict[str, object]:
    import torch

    if not torch.cuda.device_count():
        return {"absent": NO_DEVICE}
    try:
        return {"rows": [asdict(row) for row in measured(case, quick=quick)]}
    except Exception as error:  # noqa: BLE001 - a failure on an untested card is worth as much as a figure
        return {"absent": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1], quick=sys.argv[2] == "1")))
