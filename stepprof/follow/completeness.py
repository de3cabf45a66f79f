"""Find the recorded steps that are complete: no process will add to them any more.

The facts come from manifest fragments and status files, which every process writes anyway. A
process without a final state counts as gone when it is dead on this host, when it was replaced by a
later start of the job, or, on another host, after a minute without a new status. What a forked
export still writes is pending until that process has ended too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from stepprof.host import real_time
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import json_files, read_table
from stepprof.host.process_identity import is_alive
from stepprof.run.fields import path_problem
from stepprof.run.layout import MANIFEST, ON_COMPLETE, PRUNED, UPLOADS, step_folder
from stepprof.run.names import STATUS
from stepprof.run.reasons import is_pending
from stepprof.run.status import read_statuses

SILENT_SECONDS = 60.0
"""A process of another host whose status has not changed for this long is gone."""

OUTCOMES = ("complete", "partial", "skipped", "failed", "lost")
"""From best to worst. A step has the status of its worst window or engine."""


@dataclass(slots=True)
class Step:
    """The content of a step's fragments, as far as the work after a step needs it."""

    number: int
    windows: int = 0
    pending: bool = False
    """Something is still being recorded or exported."""
    exporting: bool = False
    """A process that a dead one has left behind is still exporting."""
    recorded_unix_ns: int = 0
    """When the last window or engine began."""
    status: str = "complete"
    artifacts: dict[str, int] = field(default_factory=dict)
    """Sizes in bytes, by the path below the step's folder."""
    not_uploaded: int = 0
    """Number of artifacts that could not be uploaded."""

    @property
    def bytes(self) -> int:
        """Return the size of all artifacts."""
        return sum(self.artifacts.values())


class Peers:
    """The processes of the run, according to their status files.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._reports: dict[str, tuple[object, float]] = {}
        self._statuses: list[dict[str, Any]] = []
        self._gone: set[str] = set()
        """The files of processes that are gone or have ended."""
        self._by_writer: dict[str, list[str]] = {}
        self._begun = real_time.monotonic()

    def look(self) -> None:
        """Read the status files again."""
        reported = [each for each in read_statuses(self._run) if each["condition"] != "damaged"]
        self._statuses = [each for each in reported if not self._is_foreign(each)]
        self._gone = {each["file"] for each in self._statuses if each["ended"] or self._is_gone(each)}
        self._by_writer = {}
        for each in self._statuses:
            self._by_writer.setdefault(_named(each["writer"]), []).append(each["file"])

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each process."""
        return self._statuses

    @property
    def alive(self) -> list[str]:
        """Return the names of the status files of processes that are still running."""
        return [each["file"] for each in self._statuses if each["file"] not in self._gone]

    def over(self, restart_seconds: float) -> bool:
        """Return whether all processes have ended, or are gone and were not started again for so long. A rank
        that was started again has the later of its statuses.

        Args:
            restart_seconds: for a run whose processes have not all ended well.
        """
        if self.alive:
            return False
        if self._statuses and all(each["ended"] and not each["failed"] for each in self._latest()):
            return True
        ages = [each["age_seconds"] for each in self._statuses if each["age_seconds"] is not None]
        return min(ages, default=real_time.monotonic() - self._begun) >= restart_seconds

    def _latest(self) -> list[dict[str, Any]]:
        """Return the statuses without those of ranks that were started again after their last report."""
        by_start = sorted(self._statuses, key=lambda each: each["started_unix_ns"] or 0)
        last = {each["rank"]: each for each in by_start}
        return [
            each
            for each in self._statuses
            if each is last[each["rank"]]
            or (last[each["rank"]]["started_unix_ns"] or 0) <= (each["published_unix_ns"] or 0)
        ]

    @property
    def reports(self) -> list[object]:
        """Return what changes with each new report of any process."""
        return [(each["file"], each["started_unix_ns"], each["published_unix_ns"]) for each in self._statuses]

    @property
    def last_start_unix_ns(self) -> int:
        """Return when the latest process started: it tells apart the jobs that continue one run."""
        return max((each["started_unix_ns"] or 0 for each in self._statuses), default=0)

    def here(self, step: int) -> bool:
        """Return whether any process may still record something of this step."""
        return any(
            each["file"] not in self._gone and each["step"] is not None and each["step"] <= step
            for each in self._statuses
        )

    def gone(self, writer: object) -> bool:
        """Return whether the process with this identity will write no more."""
        if not isinstance(writer, Mapping) or is_alive(writer) is False:
            return True
        return any(file in self._gone for file in self._by_writer.get(_named(writer), ()))

    def _is_foreign(self, status: Mapping[str, Any]) -> bool:
        """Return whether another user wrote this status: it could delay the step without end."""
        return status["uid"] != os.geteuid() and is_foreign(self._run / STATUS / str(status["file"]))

    def _is_gone(self, status: Mapping[str, Any]) -> bool:
        alive = is_alive(status["writer"])
        if status["condition"] == "replaced":
            return True
        if alive is None:
            return self._is_silent(status["file"], status["published_unix_ns"])
        return not alive

    def _is_silent(self, process: str, report: object) -> bool:
        """Return whether a process has had the same report for SILENT_SECONDS, by this process's clock."""
        now = real_time.monotonic()
        before = self._reports.get(process)
        if before is None or before[0] != report:
            self._reports[process] = (report, now)
            return False
        return now - before[1] > SILENT_SECONDS


def _named(writer: Mapping[str, Any]) -> str:
    """Return the identity of a process as one string."""
    return json.dumps(writer, sort_keys=True)


def read_step_for(run: Path, number: int, peers: Peers) -> Step:
    """Return the content of a step's fragments.

    Args:
        run: the run directory.
        number: the step.
        peers: decides which writers are gone: their pending entries are final.
    """
    step = Step(number)
    try:
        files = json_files(run / step_folder(number) / MANIFEST)
    except OSError:
        return step
    for file in files:
        # `check` reports a foreign file
        if file.name not in (ON_COMPLETE, PRUNED, UPLOADS) and not is_foreign(file):
            _add(step, file, peers)
    return step


def _add(step: Step, fragment: Path, peers: Peers) -> None:
    try:
        content = read_table(fragment)
    except (OSError, ValueError):
        return  # half copied, or damaged: readers report it
    entries = [entry for key in ("windows", "engines") for entry in _tables(content.get(key))]
    if any(map(is_pending, entries)):
        exporter = content.get("exporter")
        if isinstance(exporter, dict) and is_alive(exporter):
            step.exporting = step.pending = True
        elif not peers.gone(content.get("writer")):
            step.pending = True
    step.windows += len(entries)
    for entry in entries:
        for artifact in _tables(entry.get("artifacts")):
            if _is_below(artifact.get("path")) and isinstance(artifact.get("bytes"), int):
                step.artifacts[artifact["path"]] = artifact["bytes"]
        if isinstance(began := entry.get("start_unix_ns"), int):
            step.recorded_unix_ns = max(step.recorded_unix_ns, began)
        outcome = entry.get("status")
        if outcome in OUTCOMES:
            step.status = max(step.status, str(outcome), key=OUTCOMES.index)


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_below(path: object) -> bool:
    """Return whether an artifact's path stays below its step's folder, and outside of the manifest."""
    return path_problem(path) is None and PurePosixPath(str(path)).parts[0] != MANIFEST
