"""Pending reports of an engine in an actor. The driver process polls them, because no call may wait
in an actor that generates.
"""

from __future__ import annotations

import concurrent.futures
import time
from typing import TYPE_CHECKING

from stepprof.backends.base import ExportError
from stepprof.remote.base import Stopped
from stepprof.remote.loop import remote_loop
from stepprof.remote.ray.inside.messages import Collected
from stepprof.run.manifest_writer import describe_error

if TYPE_CHECKING:
    from stepprof.remote.base import EngineWindow, Later

Key = tuple[int, "str | None", int]


class PendingReports:
    """The pending reports of one engine, by window."""

    def __init__(self) -> None:
        self._waiting: dict[Key, tuple[Later, concurrent.futures.Future[Stopped]]] = {}

    def begin(self, window: EngineWindow, later: Later) -> None:
        """Wait for the report of a window."""
        self._waiting[_key(window)] = later, remote_loop().submit(later.wait())

    def collect(self, window: EngineWindow, seconds: float | None) -> Collected | None:
        """Return the result; None: there is none yet.

        Args:
            window: the window of the report.
            seconds: the remaining seconds, if the end of the run is near.
        """
        waiting = self._waiting.get(_key(window))
        if waiting is None:
            return Collected(
                outcome="lost", error="the actor has no pending report: its process was replaced"
            )
        later, future = waiting
        if not future.done():
            if seconds is not None:
                remote_loop().call(later.hurry, time.monotonic() + seconds)
            return None
        del self._waiting[_key(window)]
        try:
            return Collected(future.result())
        except ExportError as error:
            return Collected(outcome=error.outcome, error=str(error))
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; the driver process reports it
            return Collected(outcome="lost", error=describe_error(error))


def _key(window: EngineWindow) -> Key:
    return window.window.step, window.window.role, window.window.occurrence
