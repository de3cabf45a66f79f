"""Find the recorded steps that are complete: no process will add to them any more.

The facts come from manifest fragments and status files, which every process writes anyway. A
process without a final state counts as gone when it is dead on this host, when it was replaced by a
later start of the job, or, on another host, after a minute without a new status.
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
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.fields import path_problem
from stepprof.run.layout import MANIFEST, ON_COMPLETE, PRUNED, step_folder
from stepprof.run.names import STATUS
from stepprof.run.reasons import is_pending
from stepprof.run.status import read_statuses

SILENT_SECONDS = 60.0
"""A process of another host whose status has not changed for this long is gone."""

OUTCOMES = ("complete", "partial", "skipped", "failed", "lost")
"""From best to worst. A step has the status of its worst window or engine."""


@dataclass(slots=True)
class Step:
    """The content of a step's fragments, as far as post-step work needs it."""

    number: int
    windows: int = 0
    pending: bool = False
    """Something is still being recorded, exported or uploaded."""
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
        self._by_writer: dict[str, list[dict[str, Any]]] = {}
        self._passed_over: set[str] = set()

    def look(self) -> None:
        """Read the status files again."""
        reported = [each for each in read_statuses(self._run) if each["condition"] != "damaged"]
        self._statuses = [each for each in reported if not self._is_foreign(each)]
        self._by_writer = {}
        for each in self._statuses:
            self._by_writer.setdefault(_named(each["writer"]), []).append(each)

    def _is_foreign(self, status: Mapping[str, Any]) -> bool:
        """Return whether another user wrote this status: it could delay the step without end."""
        path = self._run / STATUS / str(status["file"])
        if status["uid"] in (None, _user()) or not is_foreign(path):
            return False
        if status["file"] not in self._passed_over:
            self._passed_over.add(str(status["file"]))
            logger.warning("status.ignored", path=str(path), reason="it does not belong to this job's user")
        return True

    def here(self, step: int) -> bool:
        """Return whether any process may still record something of this step."""
        return any(
            not each["ended"] and each["step"] is not None and each["step"] <= step and not self._gone(each)
            for each in self._statuses
        )

    def others(self, ours: object) -> bool:
        """Return whether any process but `ours` is still running."""
        return any(
            not each["ended"] and each["writer"] != ours and not self._gone(each) for each in self._statuses
        )

    def gone(self, writer: object) -> bool:
        """Return whether the process with this identity will write no more."""
        if not isinstance(writer, Mapping) or is_alive(writer) is False:
            return True
        return any(each["ended"] or self._gone(each) for each in self._by_writer.get(_named(writer), ()))

    def _gone(self, status: Mapping[str, Any]) -> bool:
        alive = is_alive(status["writer"])
        if status["condition"] == "replaced":
            return True
        if alive is None:
            return self.silent(status["file"], status["published_unix_ns"])
        return not alive

    def silent(self, process: str, report: object) -> bool:
        """Return whether a process has had the same report for SILENT_SECONDS, by this process's clock."""
        now = real_time.monotonic()
        before = self._reports.get(process)
        if before is None or before[0] != report:
            self._reports[process] = (report, now)
            return False
        return now - before[1] > SILENT_SECONDS


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def _named(writer: Mapping[str, Any]) -> str:
    """Return the identity of a process as one string."""
    return json.dumps(writer, sort_keys=True)


def read_step_for(run: Path, number: int, peers: Peers, *, uploads: bool) -> Step:
    """Return the content of a step's fragments.

    Args:
        run: the run directory.
        number: the step.
        peers: decides which writers are gone: their pending entries are final.
        uploads: whether artifacts are uploaded; the step is pending until they are.
    """
    step = Step(number)
    try:
        files = json_files(run / step_folder(number) / MANIFEST)
    except ours(OSError):
        return step
    for file in files:
        if file.name not in (ON_COMPLETE, PRUNED):
            _add(step, file, peers, uploads)
    return step


def _add(step: Step, fragment: Path, peers: Peers, uploads: bool) -> None:
    if is_foreign(fragment):
        return  # `check` reports it
    try:
        content = read_table(fragment)
    except ours(OSError, ValueError):
        return  # half copied, or damaged: readers report it
    entries = [entry for key in ("windows", "engines") for entry in _tables(content.get(key))]
    awaited = any(map(is_pending, entries))
    artifacts = {
        artifact["path"]: artifact["bytes"]
        for entry in entries
        for artifact in _tables(entry.get("artifacts"))
        if _is_below(artifact.get("path")) and isinstance(artifact.get("bytes"), int)
    }
    reported = {each.get("path"): each.get("status") for each in _tables(content.get("uploads"))}
    if uploads:
        awaited = awaited or any(path not in reported for path in artifacts)
        step.not_uploaded += sum(reported.get(path) != "uploaded" for path in artifacts)
    if awaited and not peers.gone(content.get("writer")):
        step.pending = True
    step.windows += len(entries)
    step.artifacts.update(artifacts)
    for entry in entries:
        outcome = entry.get("status")
        if outcome in OUTCOMES:
            step.status = max(step.status, str(outcome), key=OUTCOMES.index)


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_below(path: object) -> bool:
    """Return whether an artifact's path stays below its step's folder, and outside of the manifest."""
    return path_problem(path) is None and PurePosixPath(str(path)).parts[0] != MANIFEST
