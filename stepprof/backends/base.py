"""The contract of a backend: how the local target captures.

A backend knows one profiler and nothing of steps, selections or manifests. The machine around it (``stepprof.recording.local_target``) sees to it
that the calls come in a legal order and one at a time; the backend sees to it that none of them can take the process down.
A plug-in is a class with these members, named in the entry-point group ``stepprof.backends``; it is called with the options of
its table in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from stepprof.errors import BackendError
from stepprof.run.model import Annotation, Artifact, Capture, Outcome

__all__ = ["Backend", "Busy", "Export", "ExportError", "Incomplete", "keep_for_good"]

Export = Callable[[], tuple[Artifact, ...]]
"""What is left to do after the hand-over: writes, verifies and names the artifacts. May run in a forked child."""


class Busy(BackendError):
    """Somebody else's profiler runs in this process; it is left alone."""


class ExportError(BackendError):
    """An export that failed; `artifacts` are those that exist nevertheless."""

    outcome: Outcome = "failed"
    """What the window is by it."""

    def __init__(self, message: str, artifacts: tuple[Artifact, ...] = ()) -> None:
        super().__init__(message)
        self.artifacts = artifacts


class Incomplete(ExportError):
    """Something of the capture is missing, and what there is, is worth having: the window is `partial`."""

    outcome = "partial"


class Backend(Protocol):
    """How the local target captures."""

    name: str
    thread_bound: bool
    """Whether stop has to come from the thread that started."""

    def probe(self) -> str | None:
        """Say why it cannot record here, or None. Pays the slow imports."""
        ...

    def arm(self) -> None:
        """Do what is slow before the window begins. Raises BackendError, or Busy."""
        ...

    def start(self, capture: Capture) -> None:
        """Begin to record. Raises BackendError, or Busy."""
        ...

    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> Export:
        """End the recording: the hand-over now, on this thread; what is left to do as a callable."""
        ...

    def abort(self) -> None:
        """Leave any half state. Idempotent; never raises."""
        ...

    def mark(self, name: str) -> AbstractContextManager[object] | None:
        """A synchronous region inside the capture, or None where the backend has no such thing.

        It is entered and left on the thread of the region. One that is still in progress when the capture ends is left right before
        `stop`, by the thread that stops: by the backend's ``leave(marks)`` where it has such a method. One of which its ``may_leave(mark)``
        says no is left by the region's own thread, later.

        A backend may have two more of the kind, whose marks are left on any thread, in any order: ``mark_lane(name)``, a region that may be
        suspended (a coroutine's, a generator's), and ``mark_window(window)``, a window that joins the capture.
        """
        ...

    def bytes_so_far(self) -> int | None:
        """How large the artifact would be by now, where it can be told."""
        ...

    def export_mode(self) -> str:
        """What ``export = "auto"`` means here and now: ``fork``, ``thread`` or ``inline``.

        A backend whose export waits for somebody else says so by ``waits = True``: it is never run in place, whatever is configured.
        """
        ...


def keep_for_good(mark: object) -> None:
    """Never free a range that can neither be left nor dropped any more.

    A range of torch's that ends after the session it began in, be it by being freed, writes into memory that is no longer its own.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mark))
