"""The adapter of Lightning: callbacks that its entry points load, and its profiler's actions as regions.

`Trainer`: the window of a step begins with its first batch and ends where the next one begins. Its
number is ``trainer.global_step + 1``; with manual optimization it counts the batches that stepped. `Fabric` has no trainer: its steps are calls of the optimizer.
Both exist twice, as ``lightning.pytorch`` and as ``pytorch_lightning``.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, ClassVar

from stepprof.instrument.context import cell
from stepprof.integrations.activation import attach
from stepprof.integrations.adapter import Adapter
from stepprof.integrations.hooks import around, hooked, timed
from stepprof.integrations.optimizer_steps import LeadingOptimizer, ManualSteps, report_steps
from stepprof.integrations.training_loop import TrainingLoop, close_timer, open_timer

REGIONS = {
    "train_dataloader_next": "fetch_data",
    "training_step": "training_step",
    "backward": "backward",
    "optimizer_step": "optimizer_step",
    "validation_step": "validation_step",
    "on_save_checkpoint": "save_checkpoint",
}
"""Actions of Lightning's profiler that are regions in every step, by the last part of their name. The others are regions in recorded steps."""


class _LightningEvents:
    """What stepprof does at the events of a `Trainer`."""

    def __init__(self, *, always: bool = True) -> None:
        self._loop = TrainingLoop("lightning", always=always)
        self._evaluations: list[Any] = []
        self._manual: ManualSteps | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the windows of this loop from now on."""
        self._loop.claim()
        self._manual = None if pl_module.automatic_optimization else ManualSteps(trainer)

    def _finished(self, trainer: Any) -> int:
        """Return how many steps have finished."""
        return int(trainer.global_step if self._manual is None else self._manual.finished(trainer))

    def _ended(self, exception: BaseException | None = None) -> None:
        self._loop.end(exception)
        self._loop.release()
        if self._manual is not None:
            self._manual.close()
            self._manual = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Open the window of the step, unless it is open: a step may have several batches."""
        self._loop.begin(self._finished(trainer) + 1)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the window of an evaluation."""
        if not trainer.sanity_checking:
            self._evaluations.append(self._loop.evaluation(self._finished(trainer)))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the window of an evaluation."""
        if self._evaluations:
            self._loop.end_evaluation(self._evaluations.pop())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the last window."""
        self._ended()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close every open window, with the exception that ends the job."""
        while self._evaluations:
            self._loop.end_evaluation(self._evaluations.pop(), exception)
        self._ended(exception)


class _FabricEvents:
    """What stepprof does at the events of `Fabric`: each call of the leading optimizer ends a step."""

    latest: ClassVar[_FabricEvents | None] = None
    """Those of the `Fabric` that has made the latest backward pass."""

    def __init__(self) -> None:
        self._loop = TrainingLoop("lightning")
        self._leading = LeadingOptimizer()
        self._finished = 0
        self._is_reporting = False
        """Whether Fabric reports steps: the job has passed its optimizers to `setup`."""
        self._has_backward = False
        self._counted: int | None = None
        """The identity of the optimizer whose step torch has just reported."""

    def __reduce__(self) -> tuple[type[_FabricEvents], tuple[()]]:
        """Pickle it as new: Fabric pickles its callbacks for each rank that it spawns, which counts its own steps."""
        return _FabricEvents, ()

    def on_before_backward(self) -> None:
        """Open the window of the first step, whose beginning Fabric does not report."""
        if not self._loop.is_claimed_elsewhere:
            report_steps(_optimizer_stepped)
            _FabricEvents.latest = self
            self._has_backward = True
            self._loop.begin(self._finished + 1)

    def on_after_optimizer_step(self, strategy: Any, optimizer: Any) -> None:
        """Close the window of this step, and open that of the next one."""
        self._is_reporting = True
        counted, self._counted = self._counted, None
        if counted != id(optimizer):
            self._note(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Note a step that torch reports. It counts after a backward pass of Fabric, if Fabric reports none."""
        if self._has_backward and not self._is_reporting:
            self._has_backward, self._counted = False, id(optimizer)
            self._note(optimizer)

    def _note(self, optimizer: Any) -> None:
        if self._leading.counts(optimizer) and not self._loop.is_claimed_elsewhere:
            self._finished += 1
            self._loop.begin(self._finished + 1)


def _optimizer_stepped(optimizer: Any) -> None:
    latest = _FabricEvents.latest
    if latest is not None:
        latest.stepped(optimizer)


class _Actions:
    """A profiler of Lightning whose actions are regions."""

    def start(self, action_name: str) -> None:
        """Begin an action."""
        _action_begins(self, (action_name,), {})

    def stop(self, action_name: str) -> None:
        """End an action."""
        _action_ends(self, (action_name,), {})


@cache
def _region_of(action: str) -> str | None:
    return REGIONS.get(action.rpartition(".")[2])


def _action_begins(profiler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    action = args[0] if args else kwargs["action_name"]
    name, recorder = _region_of(action), cell.recorder
    if recorder is None or (name is None and recorder.hook is None):
        return
    opened = profiler.__dict__.setdefault("_stepprof", {})
    opened.setdefault(action, []).append(open_timer(name or action))


def _action_ends(profiler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    opened = profiler.__dict__.get("_stepprof")
    if opened and (timers := opened.get(args[0] if args else kwargs["action_name"])):
        close_timer(timers.pop())


@cache
def _made(name: str, events: type, package: str, base: str) -> Any:
    """Return a class for one of the two packages of Lightning."""
    parent = getattr(importlib.import_module(package), base)
    return type(name, (events, parent), {"__doc__": events.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name == "StepprofCallback":
        return _made(name, _LightningEvents, "lightning.pytorch", "Callback")
    if name == "PytorchLightningCallback":
        return _made(name, _LightningEvents, "pytorch_lightning", "Callback")
    if name == "StepprofProfiler":
        return _made(name, _Actions, "lightning.pytorch.profilers", "Profiler")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def trainer_callbacks(package: str) -> list[object]:
    """Return the callbacks that an entry point adds to each `Trainer`.

    Args:
        package: ``lightning.pytorch`` or ``pytorch_lightning``.
    """
    if not attach(BY_PACKAGE[package]):
        return []
    name = "StepprofCallback" if package == "lightning.pytorch" else "PytorchLightningCallback"
    return [_made(name, _LightningEvents, package, "Callback")(always=False)]


def fabric_callbacks(package: str) -> list[object]:
    """Return the callbacks that an entry point adds to each `Fabric`.

    Args:
        package: ``lightning.fabric`` or ``lightning_fabric``.
    """
    return [_FabricEvents()] if attach(BY_PACKAGE[package]) else []


def _trainer_adapter(package: str) -> Adapter:
    passive = f"{package}.profilers.base:PassThroughProfiler"
    callback = f"{package}.callbacks.callback:Callback"
    return hooked(
        package,
        f"{package}.trainer.trainer",
        [
            around(f"{passive}.start", _action_begins, needs=("action_name",), timer=True),
            around(f"{passive}.stop", _action_ends, needs=("action_name",), timer=True),
        ],
        {
            f"{callback}.on_train_start": ("trainer",),
            f"{callback}.on_train_batch_start": ("trainer", "batch", "batch_idx"),
            f"{callback}.on_train_end": ("trainer",),
            f"{callback}.on_validation_start": ("trainer",),
            f"{callback}.on_validation_end": ("trainer",),
            f"{callback}.on_exception": ("trainer", "exception"),
            f"{package}.trainer.trainer:Trainer.global_step": (),
            f"{package}.trainer.trainer:Trainer.sanity_checking": (),
            f"{package}.loops.fit_loop:_FitLoop.total_batch_idx": (),
        },
        distributions=("lightning", "pytorch-lightning"),
        tested=">=2.4,<2.7",
    )


def _backward_begins(fabric: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for callback in fabric._callbacks:
        if isinstance(callback, _FabricEvents):
            callback.on_before_backward()
    return open_timer("backward")


def _fabric_adapter(package: str) -> Adapter:
    fabric = f"{package}.fabric:Fabric"
    return hooked(
        package,
        f"{package}.fabric",
        [
            around(f"{fabric}.backward", _backward_begins, close_timer, needs=("tensor",)),
            timed(f"{fabric}.save", "save_checkpoint", needs=("path",)),
            timed(f"{package}.wrappers:_FabricOptimizer.step", "optimizer_step"),
        ],
        distributions=("lightning", "lightning-fabric"),
        tested=">=2.4,<2.7",
    )


BY_PACKAGE = {
    **{package: _trainer_adapter(package) for package in ("lightning.pytorch", "pytorch_lightning")},
    **{package: _fabric_adapter(package) for package in ("lightning.fabric", "lightning_fabric")},
}
ADAPTERS = tuple(BY_PACKAGE.values())
