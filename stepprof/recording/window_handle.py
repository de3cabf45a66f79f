"""The ticket of a selected window, between its enter and its exit.

The window is a value of the user's code and knows nothing of captures. The capture that it opened
or joined may end before it, or fail to start. The ticket connects the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stepprof.errors import StateError
from stepprof.run.entry_times import Timing
from stepprof.run.manifest_writer import Fragment, describe_error, window_entry
from stepprof.run.reasons import ReasonCode
from stepprof.run.schema import WindowEntry

if TYPE_CHECKING:
    from stepprof.config.config import Policy
    from stepprof.recording.engine_ports import WindowEngines
    from stepprof.run.manifest_writer import Origin
    from stepprof.run.model import Outcome, Window


class LeftOpen(StateError):
    """Why an unstopped window ends: the next ``start()`` of its role was called."""


class JoinedCapture(Protocol):
    """The capture that a window opened or joined."""

    @property
    def region(self) -> str | None:
        """Return the region that is captured; None: the window is captured."""

    @property
    def opener(self) -> Ticket:
        """Return the window that opened it."""


@dataclass(eq=False, slots=True)
class Ticket:
    """The state of a selected window between its enter and its exit. Closing it twice does nothing."""

    window: Window
    policy: Policy
    timing: Timing
    capture: JoinedCapture | None = None
    record: WindowEntry | None = None
    fragment: Fragment | None = None
    entries: int = 0
    captured: int = 0
    closed: bool = False
    refused: bool = False
    bracket: WindowEngines | None = None
    """The engines that follow the window."""
    awaits_engines: bool = False
    """Whether a coroutine exits the window and awaits the stops itself."""

    def begin(self, now_ns: int) -> None:
        """Note that the body begins, on this thread."""
        self.timing.begin(now_ns)

    def end(self, now_ns: int, *, moved: bool = False) -> None:
        """Note that the body, or before it the capture, has ended. ``moved``: the calling thread
        knows whether the body stayed on one thread.
        """
        if self.timing.end(now_ns, moved=moved):
            self._note_times()

    def _note_times(self) -> None:
        capture, fragment = self.capture, self.fragment
        if self.record is None or fragment is None:
            return
        is_of_region = capture is not None and capture.region is not None and capture.opener is self
        if not is_of_region:
            self.record.update(**self.timing.keys(fragment.origin.anchor))

    def note_error(self, error: BaseException) -> None:
        """Note the exception that left the body, in addition to the outcome. A window that was left open is partial."""
        if self.record is None or self.fragment is None:
            return
        if not isinstance(error, LeftOpen):
            self.record.body_error = describe_error(error)
        elif self.record.status == "joined":
            self.record.update(status="partial", reason_code=ReasonCode.ENDED_EARLY, error=str(error))
        self.fragment.save()


@dataclass(slots=True)
class EarlyEngines:
    """The result of a coroutine's wait before it enters a window, for that window."""

    waited_seconds: float = 0.0
    """Seconds waited for a stop on another thread."""
    window: Window | None = None
    """The window, if it exists already: its engines have been started under it."""
    bracket: WindowEngines | None = None
    """Its engines, until a window takes them over."""

    def take(self) -> WindowEngines | None:
        """Return the engines, which belong to the window from now on."""
        bracket, self.bracket = self.bracket, None
        return bracket

    def cancel(self, reason: str) -> None:
        """Stop the engines, because no window takes them over."""
        bracket = self.take()
        if bracket is not None:
            bracket.send_stops(None, partial=reason)


def log_outcome(
    ticket: Ticket,
    origin: Origin,
    post: Callable[[Callable[[], object]], None],
    *,
    status: Outcome,
    code: ReasonCode,
    reason: str,
) -> None:
    """Write into the manifest of its step, in a separate fragment, why a window was not captured."""
    fragment = Fragment(origin, ticket.window, post)
    backend = "+".join(ticket.policy.backend)
    record = window_entry(
        origin, ticket.window, ticket.timing, status=status, reason_code=code, backend=backend, error=reason
    )
    fragment.windows.append(record)
    ticket.record, ticket.fragment = record, fragment
    fragment.save()
