"""One log line after each recorded step: what this process recorded, and the command that reads it.

The line is written once a later step runs, or the session ends, and nothing of the step is pending. In a job of many ranks only
the lowest selected rank writes it.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepprof.formatting import counted, size
from stepprof.log import logger

if TYPE_CHECKING:
    from stepprof.run.manifest_writer import Fragment

__all__ = ["StepNotice"]


class StepNotice:
    """Collect the fragments of each step until the step is over.

    Args:
        run: the path of the run directory.
        speaks: return whether this process writes the line for its job.
    """

    def __init__(self, run: str, speaks: Callable[[], bool]) -> None:
        self._run = run
        self._speaks = speaks
        self._lock = threading.RLock()
        self._fragments: dict[int, set[Fragment]] = {}
        self._logged: set[int] = set()

    def take(self, fragment: Fragment) -> None:
        """Note a fragment of which a version was written. On any thread."""
        with self._lock:
            if fragment.step not in self._logged:
                self._fragments.setdefault(fragment.step, set()).add(fragment)

    def look(self, last_step: int | None) -> None:
        """Log each step that is over; ``last_step`` is the one that still runs."""
        if self._fragments:
            with self._lock:
                for step in sorted(self._fragments):
                    if step != last_step and not any(each.awaited for each in self._fragments[step]):
                        self._log(step)

    def close(self) -> None:
        """Log the steps that are left, at the end of the session."""
        with self._lock:
            for step in sorted(self._fragments):
                self._log(step)

    def _log(self, step: int) -> None:
        fragments = self._fragments.pop(step)
        self._logged.add(step)
        artifacts = [
            artifact
            for each in fragments
            for entry in [*each.windows, *each.engines]
            for artifact in entry.artifacts
        ]
        if artifacts and self._speaks():
            logger.notice(
                "step.recorded",
                step=step,
                files=counted(len(artifacts), "file"),
                size=size(sum(artifact["bytes"] for artifact in artifacts)),
                next=f"stepprof report {shlex.quote(self._run)} --step {step}",
            )
