"""Count the visits of the training loop to a step: an epoch, or a return to a checkpoint, is another
visit.

A role visits a step again if another step of the role began in between, and no window of the role
is open any more. Asynchronous training has windows of two steps open at one time and enters them by
turns: that is one visit of each.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from stepprof.instrument.context import open_windows
from stepprof.log import logger

REMEMBERED = 256
"""Maximum number of steps and roles to count; beyond that, steps more than a few back are forgotten."""

RECENT = 8

MOST_ROLES = 4096
"""Maximum number of roles to remember: a program may invent a name for each step."""


@dataclass(slots=True)
class _Counted:
    """The windows of one role and step: their number, their visit, and their stretch."""

    occurrence: int = 0
    visit: int = 1
    stretch: int = 0


class Visits:
    """The visits of one process. Windows enter on several threads."""

    def __init__(self) -> None:
        self._counted: dict[tuple[int, str | None], _Counted] = {}
        self._stretches: dict[str | None, tuple[int, int]] = {}
        """For each role, the step of its last window, and how often it has changed."""
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt
        self._is_logged = False

    def pass_by(self, step: int, role: str | None) -> None:
        """Note a window, selected or not."""
        last, stretch = self._stretches.get(role, (step, 0))
        if len(self._stretches) >= MOST_ROLES:
            self._stretches.clear()
        self._stretches[role] = (step, stretch + (last != step))

    def enter(self, step: int, role: str | None, *, came_before: bool) -> tuple[int, int]:
        """Return the number of a selected window among those of its step and role, and the number of
        its visit. A forgotten one gets a number above 1.
        """
        with self._lock:
            counted = self._counted.get((step, role))
            stretch = self._stretches.get(role, (step, 0))[1]
            if counted is None:
                if len(self._counted) >= REMEMBERED:
                    kept = {key: value for key, value in self._counted.items() if key[0] >= step - RECENT}
                    self._counted = kept
                counted = self._counted[step, role] = _Counted(visit=max(stretch, 2) if came_before else 1)
                if came_before:
                    self._log_reused(step, role)
            elif counted.stretch != stretch and all(window.role != role for window in open_windows()):
                counted.visit += 1
                self._log_reused(step, role)
            counted.occurrence += 1
            counted.stretch = stretch
            return counted.occurrence, counted.visit

    def current(self, step: int, role: str | None) -> int:
        """Return the current visit of a step."""
        counted = self._counted.get((step, role))
        return 1 if counted is None else counted.visit

    def _log_reused(self, step: int, role: str | None) -> None:
        if not self._is_logged:
            self._is_logged = True
            logger.warning(
                "step.reused",
                step=step,
                role=role,
                reason="the loop has used the number of a recorded step again, for example because it counts from 0 in each epoch. The recordings are kept apart as occurrences of the step. "
                "Commands read the last one, or the one that --occurrence names. Give profile_step a number that grows over the whole run",
            )
