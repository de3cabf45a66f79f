"""One log line after each recorded step: what this process recorded, and the command that reads it.

The line is written once a later step runs, or the session ends, and nothing of the step is pending. In a job of many ranks only
the lowest selected rank writes it.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.formatting import counted, size
from stepprof.log import logger
from stepprof.run.summary import SESSIONS

if TYPE_CHECKING:
    from stepprof.run.manifest_writer import Fragment


class StepNotice:
    """Collect the fragments of each step until the step is over.

    Args:
        run: the path of the run directory.
        logs_for_job: return whether this process writes the line for its job.
        is_loud: return whether the line must be seen: an adapter of a framework has made the session.
        is_alone: return whether no other process of the job can record the step too.
    """

    def __init__(
        self,
        run: str,
        logs_for_job: Callable[[], bool],
        is_loud: Callable[[], bool],
        is_alone: Callable[[], bool],
    ) -> None:
        self._run = run
        self._is_alone = is_alone
        self._logs_for_job = logs_for_job
        self._is_loud = is_loud
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
                    if step != last_step and self._is_final(step):
                        self._log(step)

    def close(self) -> None:
        """Log the steps that are left, at the end of the session."""
        with self._lock:
            for step in sorted(self._fragments):
                self._log(step)

    def _is_final(self, step: int) -> bool:
        """Return whether nothing of a step is pending, here and in ranks that follow this process."""
        if any(each.awaited for each in self._fragments[step]):
            return False
        return not self._has_ranks(step) or not any(entry["pending"] for entry in self._recorded(step))

    def _has_ranks(self, step: int) -> bool:
        """Return whether ranks in other processes have followed this one: their files are in their own fragments."""
        return any(entry.kind in SESSIONS for each in self._fragments[step] for entry in each.engines)

    def _recorded(self, step: int) -> list[dict[str, Any]]:
        """Return what all processes have written of the windows and engines of a step."""
        from stepprof.run.manifest import read_step

        manifest = read_step(Path(self._run), step)
        return [*manifest["windows"], *manifest["engines"]]

    def _artifacts(self, step: int) -> list[dict[str, Any]]:
        if self._has_ranks(step):
            return [artifact for entry in self._recorded(step) for artifact in entry["artifacts"]]
        entries = [entry for each in self._fragments[step] for entry in (*each.windows, *each.engines)]
        return [artifact for entry in entries for artifact in entry.artifacts]

    def _log(self, step: int) -> None:
        artifacts = self._artifacts(step)
        of = "" if self._is_alone() or self._has_ranks(step) else " of this rank"
        self._fragments.pop(step)
        self._logged.add(step)
        if artifacts and self._logs_for_job():
            logger.notice(
                "step.recorded",
                loud=self._is_loud(),
                step=step,
                files=counted(len(artifacts), "file") + of,
                size=size(sum(artifact["bytes"] for artifact in artifacts)),
                next=f"stepprof report {shlex.quote(self._run)} --step {step}",
            )
