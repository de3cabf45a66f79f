"""The switch that every patched timer checks first: whether timers record anything in this step."""

from __future__ import annotations


class TimerSwitch:
    """The switch is one attribute, because timers of steps that are not recorded may cost nothing
    else.

    ``busy`` counts the open timers, which must be closed, plus one while timers are on.
    """

    __slots__ = ("_on", "busy")

    def __init__(self) -> None:
        self._on = True
        self.busy = 1

    def turn(self, on: bool) -> None:
        """Switch the recording of timers on or off; open timers are still closed."""
        self.busy += on - self._on
        self._on = on


timers = TimerSwitch()
