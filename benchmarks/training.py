"""Measure real training loops of small steps, with stepprof on, and nothing
selected, compared with the same loops without it.

Blocks of steps alternate in one process: the plain loop, the same once more, and the loop with
stepprof. Ratios are taken within such a round. The loop compared with itself shows the resolution
of this machine: a difference below that spread cannot be measured. A step of a real job lasts
seconds. That of the perceptron lasts half a millisecond, which makes its ratio an upper bound.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import stepprof
from benchmarks.figures import Figure, Row

if TYPE_CHECKING:
    import torch

__all__ = ["measure_training"]

Loop = Callable[[int], None]


@dataclass(frozen=True)
class Workload:
    """One model in its training loop."""

    name: str
    make: Callable[[], tuple[torch.nn.Module, torch.Tensor, torch.Tensor]]
    """The model, its inputs and its targets."""
    steps: int
    """Steps in one block: about a tenth of a second, so that its start and end do not matter."""
    limited: bool
    """Whether the difference must be below the resolution."""


def measure_training(*, quick: bool) -> tuple[list[Row], dict[str, str]]:
    """Return rows of milliseconds per step and of the ratios; none if torch is not installed."""
    if find_spec("torch") is None:
        return [], {"torch": "the training loop needs torch"}
    rows = []
    for workload in (
        Workload("a small transformer", _transformer, steps=30, limited=True),
        Workload("a perceptron", _perceptron, steps=200, limited=False),
    ):
        rows += _measured(workload, *((3, 2) if quick else (60, workload.steps)))
    return rows, {}


def _measured(workload: Workload, rounds: int, steps: int) -> list[Row]:
    group = f"a training loop of {workload.name}, nothing selected"
    bare, recorded = _loops(workload)
    with tempfile.TemporaryDirectory(prefix="stepprof-bench-") as folder:
        stepprof.init(
            {"output_dir": folder, "steps": "1000000000", "backend": "null"},
            rank=0,
            world_size=1,
        )
        try:
            first, second, ours = _alternating((bare, bare, recorded), rounds, steps)
        finally:
            stepprof.shutdown()
    without, with_it = Figure.of([*first, *second]), Figure.of(ours)
    itself = Figure.of([two / one for one, two in zip(first, second, strict=True)])
    ratio = Figure.of([2 * mine / (one + two) for one, two, mine in zip(first, second, ours, strict=True)])
    added = with_it.median - without.median
    limited = workload.limited
    return [
        _row(group, "without stepprof", "ms", without),
        _row(group, "with profile_step and four regions a step", "ms", with_it, added=added),
        _row(group, f"without stepprof against itself, {rounds} rounds of {steps} steps", "x", itself),
        _row(
            group,
            "with stepprof against without",
            "x",
            ratio,
            judged=ratio.median,
            limit=1 + itself.spread if limited else None,
            limit_on="1 and the loop's own spread" if limited else None,
        ),
    ]


def _row(
    group: str,
    name: str,
    unit: str,
    figure: Figure,
    *,
    added: float | None = None,
    judged: float | None = None,
    limit: float | None = None,
    limit_on: str | None = None,
) -> Row:
    return Row(
        group,
        name,
        unit,
        figure.minimum,
        figure.median,
        figure.spread,
        added=added,
        judged=judged,
        limit=limit,
        limit_on=limit_on,
    )


def _alternating(loops: tuple[Loop, ...], rounds: int, steps: int) -> list[list[float]]:
    """Return the milliseconds of processor time per step of each loop, for the whole process
    including the writer's thread.
    """

    def timed(loop: Loop) -> float:
        gc.collect()
        start = time.process_time()
        loop(steps)
        return (time.process_time() - start) / steps * 1e3

    for loop in loops:
        timed(loop)
    taken: list[list[float]] = [[] for _ in loops]
    for turn in range(rounds):
        for place in range(len(loops)):
            # the order changes: which loop is first, and which one follows which
            which = (place * (1 if turn % 2 else -1) + turn) % len(loops)
            taken[which].append(timed(loops[which]))
    return taken


def _perceptron() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    return model, torch.randn(64, 64), torch.randn(64, 1)


def _transformer() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return two layers of width 64 for 4 sequences of 32 positions."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2)
    return model, torch.randn(4, 32, 64), torch.randn(4, 32, 64)


def _loops(workload: Workload) -> tuple[Loop, Loop]:
    """Return the plain loop, and the loop with stepprof."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs, targets = workload.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

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
