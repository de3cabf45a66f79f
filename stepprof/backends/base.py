"""The contract of a backend: how this process records one window.

A backend knows one profiler, and nothing of steps, selections or manifests. `stepprof.recording.local_target` calls its methods in a legal
order and one at a time. The backend makes sure that none of them can crash the process.

A plug-in is a class that derives from `Backend`, registered in the entry-point group ``stepprof.backends``. It is called with the options of its table
in the configuration. A class that does not derive from it, or that lacks an abstract member, is refused by ``stepprof.init``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from stepprof.errors import BackendError, Busy
from stepprof.run.model import Annotation, Artifact, Capture, Outcome, Window

__all__ = ["Backend", "Busy", "Export", "ExportCall", "ExportError", "Incomplete", "Mark", "keep_forever"]

ExportCall: TypeAlias = Callable[[], tuple[Artifact, ...]]
"""Writes, verifies and returns the artifacts of a capture: an `Export`, or a plain function. May run in a forked child."""

Mark: TypeAlias = AbstractContextManager[object]
"""A range inside a capture: entered when the region or window begins, exited when it ends."""


class ExportError(BackendError):
    """A failed export; ``artifacts`` are the files that exist nevertheless."""

    outcome: Outcome = "failed"
    """The outcome of the window."""

    def __init__(self, message: str, artifacts: tuple[Artifact, ...] = ()) -> None:
        super().__init__(message)
        self.artifacts = artifacts


class Incomplete(ExportError):
    """An export that is incomplete but useful: the window is `partial`."""

    outcome = "partial"


class Export(ABC):
    """An export that can be hurried or cleaned up after. If neither is needed, use a plain function."""

    @abstractmethod
    def __call__(self) -> tuple[Artifact, ...]:
        """Write, verify and return the artifacts. Raises ExportError.

        If a forked child hangs in it, the child is killed; another process may also kill it. Then `discard` is called, and the export is called
        again in this process.
        """

    def hurry(self, until: float) -> None:
        """Wait for other processes no longer than until then (by `time.monotonic`): the process is about to exit."""

    def discard(self) -> None:
        """Remove the temporary files that an interrupted export left behind, also one in a child that was killed."""


class Backend(ABC):
    """How this process records one window.

    A backend must define `name`, `probe`, `arm`, `start`, `stop` and `abort`. The other members have defaults. An attribute may be
    overridden by a class attribute, an instance attribute or a property.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in manifests and logs."""

    @cached_property
    def thread_bound(self) -> bool:
        """Whether `stop` must run on the thread that ran `start`."""
        return False

    @cached_property
    def waits(self) -> bool:
        """Whether its export waits for another process. Such an export never runs on the training
        thread, regardless of ``export``.
        """
        return False

    @cached_property
    def marks(self) -> bool:
        """Whether it marks regions. False makes regions cheaper if another backend records at the same time."""
        return True

    @abstractmethod
    def probe(self) -> str | None:
        """Return why it cannot record in this process, or None. Pays the slow imports."""

    @abstractmethod
    def arm(self) -> None:
        """Do the slow work before the window begins. Raises BackendError, or Busy."""

    @abstractmethod
    def start(self, capture: Capture) -> None:
        """Begin to record. Raises BackendError, or Busy."""

    @abstractmethod
    def stop(self, capture: Capture, annotations: Sequence[Annotation]) -> ExportCall:
        """Stop recording, on this thread, and return the export that is left to run."""

    @abstractmethod
    def abort(self) -> None:
        """Drop whatever it prepared or records. Idempotent; never raises."""

    def keep_near(self, folder: Path) -> None:
        """Note the run directory. Called once, before `probe`, for a profiler that needs the folder before the first window."""

    def mark(self, name: str) -> Mark | None:
        """Return a range for a synchronous region, or None. The thread of the region enters and exits it.

        If the capture ends first, the thread that stops it passes the range to `leave` right before `stop`, unless `may_leave` is
        False for it: then the region's own thread exits it later.
        """
        return None

    def mark_lane(self, name: str) -> Mark | None:
        """Return a range for a region that may be suspended (of a coroutine or generator), or None. Any thread may exit it, in any order."""
        return None

    def mark_window(self, window: Window) -> Mark | None:
        """Return a range for a window that joins the capture, or None. Any thread may exit it, in any order."""
        return None

    def may_leave(self, mark: Mark) -> bool:
        """Return whether the calling thread may exit this range."""
        return True

    def leave(self, marks: Sequence[Mark]) -> None:
        """Exit the ranges that are still open, right before `stop`."""
        for mark in marks:
            mark.__exit__(None, None, None)

    def bytes_so_far(self) -> int | None:
        """Return how large the artifact would be now, or None if that is unknown. ``max_bytes`` relies on it."""
        return None

    def export_mode(self) -> str:
        """Return what ``export = "auto"`` means here and now: ``fork``, ``thread`` or ``inline``."""
        return "inline"


def keep_forever(mark: object) -> None:
    """Never free a range that can be neither left nor dropped. A range of torch that ends after its
    session, also by being freed, writes into freed memory.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(mark))
