"""Refuse invalid calls: wrong steps and roles, windows used twice.

Each mistake is logged once, and only a few in all: a loop of a million steps would repeat it a
million times. Nothing here raises into the training loop unless the session is strict.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from stepprof.errors import StateError
from stepprof.instrument.scope import LARGEST_STEP
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.left_open import StartedWindows
from stepprof.run.manifest_writer import describe_error

MOST_LOGGED = 64
"""Maximum number of wrong steps and roles to log, each once."""


class Refusals:
    """The invalid calls of one session.

    Args:
        rank: returns the rank of this process.
        strict: raise instead of logging.
    """

    def __init__(self, rank: Callable[[], int | str], *, strict: bool) -> None:
        self._rank = rank
        self._strict = strict
        self._logged: set[str] = set()
        self.started = StartedWindows()

    def refuse(self, what: str, reason: str) -> None:
        """Log an invalid call; raise if ``strict``."""
        logger.warning("call.refused", what=what, rank=self._rank(), reason=reason)
        if self._strict:
            raise StateError(f"{what}: {reason}")

    def refuse_once(self, reason: str, what: str = "window") -> None:
        """Log a mistake once."""
        if self._strict or (reason not in self._logged and len(self._logged) < MOST_LOGGED):
            self._logged.add(reason)
            self.refuse(what, reason)

    def refuse_window(self, step: object, role: object, *, already_open: bool) -> None:
        """Refuse an invalid window, or one that is already open."""
        if already_open:
            self.refuse("start", f"this window of step {step} is already open")
        elif step is not None:
            self.refuse_once(f"role = {role!r}: expected a name or None")

    def step_number(self, step: object, last: int | None, what: str = "window") -> int | None:
        """Return a step as a plain number, also of numpy's and torch's integers. Return None if it
        is not a step number, and log that once.

        Args:
            step: the caller's value; None: the step that was last entered.
            last: that step.
            what: formats the step for the log.
        """
        try:
            number = last if step is None else int(operator.index(step))  # type: ignore[arg-type]
        except ours(
            Exception
        ) as error:  # a string, a tensor of two elements, an exception of a step callable
            mistake = (
                f"the callable that returns it raised {describe_error(step)}"
                if isinstance(step, Exception)
                else f"{error}"
            )
            self.refuse_once(f"step: expected an integer: {mistake}", what)
            return None
        if number is None:
            self.refuse_once("step = None: no step was entered in this process before", what)
        elif not 0 <= number <= LARGEST_STEP:
            mistake = "a negative number" if number < 0 else "a number of more than 18 digits"
            self.refuse_once(f"step: {mistake}; expected one from 0 to {LARGEST_STEP}", what)
            return None
        return number
