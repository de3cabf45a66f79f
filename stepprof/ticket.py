"""What a selected window holds between its enter and its exit.

The window itself is a value of the user's code, and knows nothing of captures; the capture that it opened or joined may end before it
does, or never have come about. The ticket is what the two know of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepprof.errors import StateError
from stepprof.records import describe_error

if TYPE_CHECKING:
    from stepprof.capture import LocalCapture
    from stepprof.config import Policy
    from stepprof.records import Fragment
    from stepprof.remote.fanout import Bracket
    from stepprof.window import Window

__all__ = ["LeftOpen", "Ticket"]


class LeftOpen(StateError):
    """Why a window ends that nobody has stopped: the next ``start()`` of its role came."""


@dataclass(eq=False, slots=True)
class Ticket:
    """What a selected window holds between its enter and its exit. Closing it twice does nothing."""

    window: Window
    policy: Policy
    start_ns: int
    capture: LocalCapture | None = None
    record: dict[str, Any] | None = None
    fragment: Fragment | None = None
    waited_seconds: float = 0.0
    entries: int = 0
    captured: int = 0
    closed: bool = False
    refused: bool = False
    bracket: Bracket | None = None
    """The engines that follow the window."""

    def tell_error(self, error: BaseException) -> None:
        """Note the exception that left the body, beside the outcome; a window that was left open is partial."""
        if self.record is None or self.fragment is None:
            return
        if not isinstance(error, LeftOpen):
            self.record["body_error"] = describe_error(error)
        elif self.record["status"] == "joined":
            self.record.update(status="partial", error=str(error))
        self.fragment.save()
