"""Whether the timers of a framework have anything to record in this step: what each patched timer asks first."""

from __future__ import annotations

__all__ = ["TimerSwitch", "timers"]


class TimerSwitch:
    """The answer, in one attribute, since timers of steps that are not recorded may not cost anything else.

    ``busy`` counts the open timers, which have to be closed, and one more while timers are on.
    """

    __slots__ = ("_on", "busy")

    def __init__(self) -> None:
        self._on = True
        self.busy = 1

    def turn(self, on: bool) -> None:
        """Record timers from now on, or do not begin another one."""
        self.busy += on - self._on
        self._on = on


timers = TimerSwitch()
