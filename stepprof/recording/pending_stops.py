"""Keep the pending stops of engines. A role's window inside a step's window sends them without
waiting, so that training continues while engines write their files. The next window of these
engines and the end of the step's window wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepprof.recording.engine_ports import EngineRegistry, WindowEngines
    from stepprof.recording.window_handle import Ticket


class PendingStops:
    """The pending stops of one process."""

    def __init__(self) -> None:
        self._steps: set[Ticket] = set()
        """Selected windows without a role that are open."""
        self._pending: list[tuple[int, str | None, WindowEngines]] = []
        self._lock = threading.RLock()  # a signal handler may interrupt

    def opened(self, ticket: Ticket) -> None:
        """Note that a selected window has been entered."""
        if ticket.window.role is None:
            with self._lock:
                self._steps.add(ticket)

    def closed(self, ticket: Ticket) -> list[WindowEngines]:
        """Note that a window is exited; return the stops that its exit waits for, including its own."""
        bracket, window = ticket.bracket, ticket.window
        with self._lock:
            self._steps.discard(ticket)
            inside = any(each.window.step == window.step for each in self._steps)
            if bracket is not None and inside and window.role is not None and bracket.stops_elsewhere:
                self._pending.append((window.step, window.role, bracket))
                return []
            own = [] if bracket is None else [bracket]
            if window.role is not None or inside or ticket.awaits_engines:
                return own
            return [*own, *self._take(lambda step, _: step == window.step)]

    def abandoned(self, ticket: Ticket) -> None:
        """Note that a window was interrupted: it waits for nothing."""
        with self._lock:
            self._steps.discard(ticket)

    def before(self, role: str | None, engines: EngineRegistry) -> list[WindowEngines]:
        """Return the stops of engines that follow windows of a role, before such a window starts them again."""
        if not self._pending:
            return []
        with self._lock:
            return self._take(lambda _, other: engines.shares(role, other))

    def _take(self, is_wanted: Callable[[int, str | None], bool]) -> list[WindowEngines]:
        found = [bracket for step, role, bracket in self._pending if is_wanted(step, role)]
        self._pending = [each for each in self._pending if each[2] not in found]
        return found
