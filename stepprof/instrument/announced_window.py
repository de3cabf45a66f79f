"""A window of another process, as that process announces it: regions here carry its step and role. It selects nothing."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from stepprof.host.real_time import perf_counter_ns
from stepprof.instrument.scope import WAKE_AT, Scope, last_open, newest

if TYPE_CHECKING:
    from stepprof.instrument.ports import Session
    from stepprof.instrument.span_recorder import Recorder

Key = tuple[int, "str | None"]
"""The step and the role of a window."""


class AnnouncedWindow(Scope):
    """One window of another process, from the moment that this process hears of it."""

    __slots__ = ()

    def __init__(self, step: int, role: str | None, recorder: Recorder) -> None:
        self.number = step
        self.role = role
        self._bound = None
        self._recorder = recorder
        self._outer = None
        self._task = None
        self._thread = recorder.thread.id
        self._before = newest.window
        newest.window = (
            self  # the context of the calling thread is left alone: tasks of the program inherit it
        )
        self._start = perf_counter_ns()

    @property
    def key(self) -> Key:
        """Return its step and role."""
        return self.number or 0, self.role

    def end(self, recorder: Recorder | None) -> None:
        """Leave the window. Keep its span, unless ``recorder`` is None."""
        start, self._start = self._start, 0
        self._before = before = None if self._before is None else last_open(self._before)
        if newest.window is self:
            newest.window = before
        if recorder is None or not start or start < recorder.began:
            return
        name = self.role or "step"
        span = (name, "window", start, perf_counter_ns(), self._thread, None, self, None, False)
        if recorder.keep:
            recorder.pending.append(span)
            if len(recorder.pending) > WAKE_AT:
                recorder.relieve()
        hook = recorder.hook
        if hook is not None:
            hook.exit(None, span)


class AnnouncedWindows:
    """The open windows of another process, according to its last announcement."""

    def __init__(self) -> None:
        self._open: list[AnnouncedWindow] = []
        self._number = -1
        self._lock = threading.RLock()  # a signal handler may interrupt

    def follow(
        self, number: int, windows: Sequence[Key], own: Collection[Key], session: Session[Any, Any]
    ) -> None:
        """Enter and leave windows, so that these are open here.

        Args:
            number: the number of the announcement. It is ignored if a later one has arrived before it.
            windows: all that are open there, the outermost first.
            own: windows that this process has entered by itself, since it records them.
            session: the session of this process.
        """
        with self._lock:
            if number <= self._number:
                return
            self._number = number
            wanted = [key for key in windows if key not in own]
            for window in reversed(self._open):
                if window.key not in wanted:
                    window.end(session.recorder)
            self._open = [window for window in self._open if window._start]
            known = {window.key for window in self._open}
            for step, role in wanted:
                if (step, role) not in known:
                    self.enter((step, role), session)
                session.last_step = step

    def drop(self, key: Key) -> bool:
        """Leave a window without a span, because this process is about to enter it itself. Return whether it was open."""
        with self._lock:
            found = [window for window in self._open if window.key == key]
            for window in found:
                window.end(None)
                self._open.remove(window)
            return bool(found)

    def enter(self, key: Key, session: Session[Any, Any]) -> None:
        """Enter a window as if it had been announced."""
        with self._lock:
            self._open.append(AnnouncedWindow(*key, session.recorder))

    def end_all(self, session: Session[Any, Any] | None) -> None:
        """Leave all windows, and ignore later announcements."""
        with self._lock:
            for window in reversed(self._open):
                window.end(None if session is None else session.recorder)
            self._open = []
