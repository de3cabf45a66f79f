"""A real training loop of small steps with stepprof on and nothing selected, against the same loop without it.

Blocks of steps of either kind alternate in one process, pair by pair; the ratio is taken within a pair. Such a step lasts about a
millisecond, far less than any step of a real job, so this is an upper bound.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

import stepprof
from benchmarks.figures import Figure, Row

__all__ = ["measure_training"]

GROUP = "a training loop of small steps, nothing selected"


def measure_training(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Rows of seconds per step and of the ratio; nothing where torch is not installed."""
    if find_spec("torch") is None:
        return [], {"torch": "the training loop needs torch"}
    pairs, steps = (2, 5) if quick else (40, 50)
    bare, recorded = _loops()
    rows = []
    for group, options in ((GROUP, {}), (f"{GROUP}, watching itself", {"watch": {"enabled": True}})):
        rows += _measured(group, options, (bare, recorded), pairs, steps)
    return rows, {}


def _measured(
    group: str,
    options: Mapping[str, object],
    loops: tuple[Callable[[int], None], Callable[[int], None]],
    pairs: int,
    steps: int,
) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        config = {"output_dir": folder, "steps": "1000000000", "backend": "null", **options}
        stepprof.init(config, rank=0, world_size=1)
        try:
            without, with_it = _pairs(*loops, pairs, steps)
        finally:
            stepprof.shutdown()
    ratio = Figure.of([mine / its for mine, its in zip(with_it, without, strict=True)])
    base, ours = Figure.of(without), Figure.of(with_it)
    return [
        Row(group, "without stepprof", "ms", base.minimum, base.median, base.spread),
        Row(
            group,
            "with profile_step and four regions a step",
            "ms",
            ours.minimum,
            ours.median,
            ours.spread,
            added=ours.median - base.median,
        ),
        Row(
            group,
            f"ratio within a pair, {pairs} pairs of {steps} steps",
            "x",
            ratio.minimum,
            ratio.median,
            ratio.spread,
        ),
    ]


def _pairs(
    bare: Callable[[int], None], recorded: Callable[[int], None], pairs: int, steps: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of processor time per step of the whole process, the writer's thread included."""

    def timed(loop: Callable[[int], None]) -> float:
        gc.collect()
        start = time.process_time()
        loop(steps)
        return (time.process_time() - start) / steps * 1e3

    timed(bare), timed(recorded)
    without, with_it = [], []
    for pair in range(pairs):
        if pair % 2:
            with_it.append(timed(recorded))
            without.append(timed(bare))
        else:
            without.append(timed(bare))
            with_it.append(timed(recorded))
    return without, with_it


def _loops() -> tuple[Callable[[int], None], Callable[[int], None]]:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(64, 64), torch.randn(64, 1)

    def forward() -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(inputs), targets)

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    def update() -> None:
        optimizer.step()

    def clear() -> None:
        optimizer.zero_grad()

    def bare(steps: int) -> None:
        for _ in range(steps):
            clear()
            backward(forward())
            update()

    forward_region = stepprof.region("forward")(forward)
    backward_region = stepprof.region("backward")(backward)
    update_region = stepprof.region("update")(update)

    def recorded(steps: int) -> None:
        for step in range(1, steps + 1):
            with stepprof.profile_step(step, role="actor"):
                with stepprof.region("clear"):
                    clear()
                backward_region(forward_region())
                update_region()

    return bare, recorded
