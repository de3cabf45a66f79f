"""Count the steps of a loop that several optimizers make: of a GAN, or of phases with an optimizer each."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from stepprof.instrument.context import cell


@cache
def report_steps(stepped: Callable[[Any], None]) -> None:
    """Have torch report each step of an optimizer from now on, while there is a session."""

    def report(optimizer: Any, *_: object) -> None:
        recorder = cell.recorder
        if recorder is not None and not recorder.is_compiling():
            stepped(optimizer)

    importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(report)


class LeadingOptimizer:
    """Selects, of several optimizers, the one whose steps are counted: the first, until another one steps more often."""

    def __init__(self) -> None:
        self._leader: weakref.ref[Any] | None = None
        self._since: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those that have stepped since the last step that was counted."""

    def counts(self, optimizer: Any) -> bool:
        """Note a step of an optimizer. Return whether it is one that is counted."""
        leader = None if self._leader is None else self._leader()
        if leader is not None and optimizer is not leader and optimizer not in self._since:
            self._since.add(optimizer)
            return False
        if leader is not optimizer:
            self._leader = weakref.ref(optimizer)
        self._since.clear()
        return True


class ManualSteps:
    """Counts the batches of a Lightning `Trainer` in which an optimizer stepped, with manual optimization.

    `trainer.global_step` counts each optimizer there, and none that the job calls without Lightning's wrapper.
    """

    def __init__(self, trainer: Any) -> None:
        before, batches = int(trainer.global_step), int(trainer.fit_loop.total_batch_idx) + 1
        # after a resume: several optimizers count each batch more than once, accumulation less than once
        self._finished = min(before, batches) if before else batches
        self._counted = before
        self._stepped = False
        self._hooks = [each.register_step_post_hook(self._note) for each in trainer.optimizers]

    def _note(self, *_: object) -> None:
        self._stepped = True

    def finished(self, trainer: Any) -> int:
        """Return how many steps have finished. Call it between two batches."""
        if self._stepped or trainer.global_step != self._counted:
            self._finished += 1
        self._stepped, self._counted = False, int(trainer.global_step)
        return self._finished

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
