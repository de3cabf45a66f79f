"""What a session does not take, and how it says so: steps and roles that are none, windows used twice, windows that were left open.

A wrong step in a loop of a million would be logged a million times; so each is logged once, and no more than a few. Nothing here raises
into the training loop unless the session is strict.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

from stepprof.errors import StateError
from stepprof.log import logger
from stepprof.recording.window_handle import LeftOpen
from stepprof.run.manifest_writer import describe_error

__all__ = ["Refusals"]

TOLD = 64
"""Wrong steps and roles that a session tells of, each once; more would be a line per step."""


class Refusals:
    """What was asked for wrongly in one session.

    Args:
        rank: what this process is called.
        strict: raise what would otherwise be logged.
    """

    def __init__(self, rank: Callable[[], int | str], *, strict: bool) -> None:
        self._rank = rank
        self._strict = strict
        self._told: set[str] = set()
        self._left_open: dict[tuple[int, str | None], Any] = {}

    def refuse(self, what: str, reason: str) -> None:
        """Something illegal was asked for: told, and raised only if ``strict``."""
        logger.warning("call.refused", what=what, rank=self._rank(), reason=reason)
        if self._strict:
            raise StateError(f"{what}: {reason}")

    def refuse_once(self, reason: str) -> None:
        """A window that cannot be one; told once."""
        if self._strict or (reason not in self._told and len(self._told) < TOLD):
            self._told.add(reason)
            self.refuse("window", reason)

    def refuse_window(self, step: object, role: object, *, already_open: bool) -> None:
        """A window that cannot be one, or is one already."""
        if already_open:
            self.refuse("start", f"this window of step {step} is already open")
        elif step is not None:
            self.refuse_once(f"role = {role!r}: expected a name or None")

    def step_number(self, step: object, last: int | None) -> int | None:
        """A step as a plain number: numpy's and torch's integers too. None, told once, for what is none.

        Args:
            step: what the caller gave; None: the step that was last entered.
            last: that step.
        """
        try:
            number = last if step is None else int(operator.index(step))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - a text, a tensor of two elements, what a step callable raised
            what = (
                f"what finds it raised {describe_error(step)}" if isinstance(step, Exception) else f"{error}"
            )
            self.refuse_once(f"step: expected a whole number: {what}")
            return None
        if number is None:
            self.refuse_once("step = None: no step was entered in this process before")
        elif number < 0:
            self.refuse_once("step: a negative number; expected one from 0 on")
            return None
        return number

    # -- windows left open by start()

    def left_open(self, window: Any, role: object, task: int | None) -> tuple[Any, LeftOpen] | None:
        """Return the window that the start() before left open in this thread or task, and the error to stop it with; None: it was stopped."""
        if not (role is None or isinstance(role, str)):
            return None
        key = (task or threading.get_ident(), role)
        left = self._left_open.get(key)
        self._left_open[key] = window
        window._key = key
        if left is None or left is window or not left._start:
            return None
        return left, LeftOpen("the window was left open, and closed by the next start of its role")

    def forget_left_open(self, window: Any) -> None:
        """A window that start() opened was stopped."""
        key: Any = getattr(window, "_key", None)
        if self._left_open.get(key) is window:
            self._left_open.pop(key, None)
