"""What a recorded step costs on a GPU: how long training stands still, and how much slower the step itself is, for each backend and way of exporting.

``python -m benchmarks --only gpu`` on a machine with one; elsewhere that is said. A real model (a transformer of 8 layers) trains; every other step is recorded, so that slow spells fall on both kinds.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.apart import ask
from benchmarks.figures import Row

__all__ = ["measure_gpu"]

CASES: dict[str, dict[str, Any]] = {
    "torch, export in place": {"backend": "torch", "export": "inline"},
    "torch, export in a child": {"backend": "torch", "export": "fork"},
    "memory": {"backend": "memory"},
    "memory, C++ stacks": {"backend": "memory", "memory": {"stacks": "all"}},
    "torch and memory": {"backend": ["torch", "memory"]},
    "null": {"backend": "null"},
}


def measure_gpu(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Rows of each case, a process for each; or the reason why there are none."""
    if find_spec("torch") is None:
        return [], {"gpu": "torch is not installed"}
    rows: list[Row] = []
    for case in CASES:
        found, reason = ask("benchmarks.gpu", case, str(int(quick)), timeout=900)
        if reason is not None:
            return [], {"gpu": reason}
        rows += found
    return rows, {}


def measured(case: str, *, quick: bool, device: str = "cuda") -> list[Row]:
    """Train, record every other step, and look into the manifests."""
    import torch

    import stepprof

    steps = 6 if quick else 40
    step_of = _trainer(torch, device, quick=quick)
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
        windows = [
            window
            for path in Path(session.path or folder).glob("step-*/manifest/*.json")
            for window in json.loads(path.read_text())["windows"]
        ]
    failed = [window["error"] for window in windows if window["status"] != "complete"]
    if failed:
        raise RuntimeError(f"{case}: {failed[0]}")
    bare = statistics.median(seconds[False])
    name = f"recorded step on {_called(torch, device)}, {case}"
    stall = [window["stall_seconds"] for window in windows]
    export = [window["export_seconds"] or 0.0 for window in windows]
    size = [sum(artifact["bytes"] for artifact in window["artifacts"]) for window in windows]
    recorded = seconds[True]
    return [
        Row(name, "step, not recorded", "ms", bare * 1e3),
        Row(name, "step, recorded", "ms", statistics.median(recorded) * 1e3, ratio=statistics.median(recorded) / bare),
        Row(name, "training stands still", "ms", min(stall) * 1e3, statistics.median(stall) * 1e3),
        Row(name, "export job", "ms", min(export) * 1e3, statistics.median(export) * 1e3),
        Row(name, "artifacts", "MB", statistics.median(size) / 1e6),
    ]  # fmt: skip


def _trainer(torch: Any, device: str, *, quick: bool) -> Any:
    """A transformer, its optimizer and one batch."""
    torch.manual_seed(0)
    width, layers, batch, length = (64, 2, 2, 16) if quick else (1024, 8, 16, 256)
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randn(batch, length, width, device=device)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())  # waits for the device

    return step


def _called(torch: Any, device: str) -> str:
    if device == "cpu":
        return "the CPU"
    return f"{torch.cuda.get_device_name(0)} (torch {torch.__version__}, CUDA {torch.version.cuda})"


def _told(case: str, *, quick: bool) -> dict[str, object]:
    import torch

    if not torch.cuda.device_count():
        return {"absent": "no CUDA device"}
    return {"rows": [asdict(row) for row in measured(case, quick=quick)]}


if __name__ == "__main__":
    print(json.dumps(_told(sys.argv[1], quick=sys.argv[2] == "1")))
