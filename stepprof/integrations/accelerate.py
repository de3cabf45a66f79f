"""The adapter of accelerate: each step of the leading optimizer that synchronises gradients ends a step. If the job passes none to
`prepare`, or DeepSpeed steps by itself, torch's report of the first step after a backward pass does.

Below a trainer that opens windows itself, such as Transformers', it adds regions alone.
"""

from __future__ import annotations

from typing import Any

from stepprof.integrations.activation import attach
from stepprof.integrations.hooks import around, hooked, timed
from stepprof.integrations.optimizer_steps import LeadingOptimizer, report_steps
from stepprof.integrations.training_loop import TrainingLoop, close_timer, open_timer

ACCELERATOR = "accelerate.accelerator:Accelerator"
OPTIMIZER = "accelerate.optimizer:AcceleratedOptimizer"


class _AccelerateSteps:
    """The steps of a loop that is written with accelerate."""

    def __init__(self) -> None:
        self.loop = TrainingLoop("accelerate")
        self.finished = 0
        self._leading = LeadingOptimizer()
        self._is_prepared = False
        """Whether accelerate reports steps: the job has passed its optimizers to `prepare`."""
        self._has_backward = False

    def begin(self) -> None:
        """Open the window of the step that follows, unless it is open."""
        if not self.loop.is_claimed_elsewhere:
            self.loop.begin(self.finished + 1)

    def backward_begins(self) -> None:
        """Open the window of the first step, whose beginning accelerate does not report."""
        report_steps(_optimizer_stepped)
        self._has_backward = True
        self.begin()

    def prepared_step_begins(self) -> None:
        """Note that accelerate reports steps."""
        self._is_prepared = True

    def stepped(self, optimizer: Any) -> None:
        """Note a step that torch reports. It counts after a backward pass, if accelerate reports none."""
        if self._has_backward and not self._is_prepared:
            self._has_backward = False
            self._note(optimizer)

    def optimized(self, optimizer: Any) -> None:
        """Note a step of an optimizer; steps that only accumulate gradients do not count."""
        if optimizer.gradient_state.sync_gradients:
            self._note(optimizer)

    def _note(self, optimizer: Any) -> None:
        if self._leading.counts(optimizer):
            self.finished += 1
            self.begin()


_steps = _AccelerateSteps()


def watch(accelerator: Any, finished_steps: int = 0) -> None:
    """Open a window for each optimizer step of a job that uses accelerate.

    Args:
        accelerator: the job's `Accelerator`.
        finished_steps: how many steps a resumed job has behind it.
    """
    attach(ADAPTERS[0])
    _steps.loop = TrainingLoop("accelerate", always=True)
    _steps.finished = finished_steps


def _backward_begins(accelerator: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    _steps.backward_begins()
    return open_timer("backward")


def _optimizer_stepped(optimizer: Any) -> None:
    _steps.stepped(optimizer)


def _step_begins(optimizer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> Any:
    _steps.prepared_step_begins()
    return optimizer, open_timer("optimizer_step")


def _step_ends(token: Any, error: BaseException | None) -> None:
    if token is not None:
        optimizer, timer = token
        close_timer(timer, error)
        if error is None:
            _steps.optimized(optimizer)


ADAPTERS = (
    hooked(
        "accelerate",
        ACCELERATOR,
        [
            around(f"{ACCELERATOR}.backward", _backward_begins, close_timer, needs=("loss",)),
            timed(f"{ACCELERATOR}.save_state", "save_checkpoint"),
            timed(f"{ACCELERATOR}.clip_grad_norm_", "clip_grad_norm", needs=("parameters",)),
            around(f"{OPTIMIZER}.step", _step_begins, _step_ends),
        ],
        distributions=("accelerate",),
        tested=">=1.4,<1.16",
    ),
)
