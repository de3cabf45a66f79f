"""What a coroutine has done before its window comes in: it waited without blocking its event loop, and its engines have started.

Between that and the window's own enter the coroutine may be cancelled, or the window be refused; then somebody has to stop the
engines. A value that knows whether a window has taken them over makes that one line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.remote.core.window_group import Bracket
    from stepprof.run.model import Window

__all__ = ["Ahead"]


@dataclass(slots=True)
class Ahead:
    """Handed from the waiting to the enter of one window."""

    waited_seconds: float = 0.0
    """For another thread's hand-over."""
    window: Window | None = None
    """The window, where it was made already: its engines have been started under it."""
    bracket: Bracket | None = None
    """Its engines, until a window takes them over."""

    def take(self) -> Bracket | None:
        """The engines: from now on the window's."""
        bracket, self.bracket = self.bracket, None
        return bracket

    def give_up(self, reason: str) -> None:
        """No window takes them over: they are stopped."""
        bracket = self.take()
        if bracket is not None:
            bracket.send_stops(None, partial=reason)
