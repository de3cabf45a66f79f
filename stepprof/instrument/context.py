"""The one cell that holds the current session and recorder: what ``region`` and ``profile_step`` read.

The cell is one object that is never replaced. Its ``recorder`` goes from None to a recorder once per session, never per window:
code under torch.compile guards on it, and a flag that flipped with each recorded step would recompile the model twice per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.scope import DEEPEST, UNSEEN, newest
from stepprof.instrument.state import State

if TYPE_CHECKING:
    from stepprof.instrument.ports import Session
    from stepprof.instrument.scope import Scope, Span
    from stepprof.instrument.span_recorder import Recorder


class Cell:
    """The current session and recorder of this process."""

    __slots__ = ("__weakref__", "adapters", "recorder", "session", "state")

    def __init__(self) -> None:
        self.session: Session[Any, Any] | None = None
        self.recorder: Recorder | None = None
        self.state = State()
        self.adapters: dict[str, Mapping[str, str]] = {}
        """The status of each framework adapter in this process."""

    def __reduce__(self) -> str:
        # A decorated function that is pickled by value (Ray) refers to the cell of the process in
        # which it is loaded.
        return "cell"

    def publish_adapters(self) -> None:
        """Show the adapters in the state, while there is no session."""
        self.state = replace(self.state, adapters=dict(self.adapters))

    def clear(self) -> None:
        """Remove the session, in a forked child and after a run. Open windows end here, and do not
        reach into the next session.
        """
        self.session = None
        self.recorder = None
        where, newest.window = newest.window, None
        for _ in range(DEEPEST):
            if where is None:
                break
            where._start = 0
            where = where._before


cell = Cell()


def open_windows() -> Iterator[Scope]:
    """Yield the windows that are open, in whatever thread or task, the one entered last first."""
    window = newest.window
    for _ in range(DEEPEST):
        if window is None:
            return
        if window._start:
            yield window
        window = window._before


def unfinished_windows(attributes: Mapping[str, object]) -> Iterator[Span]:
    """Yield the spans of the windows that are open: until now, with these attributes."""
    now = perf_counter_ns()
    for window in open_windows():
        if window._start > UNSEEN:
            where = window._thread, window._task, window
            yield window.role or "step", "window", window._start, now, *where, attributes, False
