"""The windows of a process whose framework times the step, its phases and its evaluations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from stepprof.integrations.hooks import Hook, around
from stepprof.integrations.training_loop import TrainingLoop, close_timer, open_timer

Close = Callable[[BaseException | None], None]
"""Closes the window or region of a timer; the argument is the exception that ended the timer, or None."""

CODETIMING = ("codetiming:Timer.__enter__", "codetiming:Timer.__exit__")

KEPT = "_stepprof_timer"
"""The attribute of a timer that holds what closes its window."""


class TimedJob:
    """The windows of one training loop.

    Args:
        name: the adapter, for the log.
        step: returns the number of the step that runs.
        roles: maps timers to the role whose window they are; all others are regions.
        whole: the timers of a whole step.
        evaluations: the timers of an evaluation.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], int],
        roles: Mapping[str, str],
        whole: tuple[str, ...],
        evaluations: tuple[str, ...] = (),
    ) -> None:
        self.loop = TrainingLoop(name)
        self._step = step
        self._roles = roles
        self._whole = whole
        self._evaluations = evaluations

    def begin(self, timer: str) -> Close:
        """Open the window or region of a timer; return a function that closes it."""
        if timer in self._whole:
            self.loop.begin(self._step())
            return self.step_ends
        if timer in self._evaluations:
            return partial(self.loop.end_evaluation, self.loop.evaluation(self._step()))
        return partial(close_timer, open_timer(timer, self._roles.get(timer)))

    def step_ends(self, error: BaseException | None) -> None:
        """Close the window of the step."""
        self.loop.end(error)


def codetiming_hooks(job: Callable[[], TimedJob | None]) -> list[Hook]:
    """Return the hooks that make the blocks of codetiming's timers windows and regions.

    Args:
        job: returns the job of this process; None: it has none, so that timers are regions.
    """

    def begins(timer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if timer.name:
            running = job()
            opened = None if running else open_timer(timer.name)
            timer.__dict__[KEPT] = running.begin(timer.name) if running else partial(close_timer, opened)

    enter, leave = CODETIMING
    return [around(enter, begins), around(leave, close_kept)]


def close_kept(timer: Any, arguments: tuple[Any, ...], _: dict[str, Any]) -> None:
    """Close the window that a timer keeps, before its ``__exit__`` with these arguments."""
    close: Close | None = timer.__dict__.pop(KEPT, None)
    if close is not None:
        close(arguments[1] if len(arguments) > 1 else None)
