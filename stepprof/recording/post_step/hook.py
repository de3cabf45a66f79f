"""Run the `on_complete` command: once for each step or once at the end of the run, on one rank.

One process creates `manifest/on-complete.json` of the step (or `after/on-complete.json` of the run)
and runs the command. The file has the command and its result. If the process dies meanwhile, the
file says `lost`, and no process runs the command again.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepprof.host import real_time
from stepprof.host.atomic_files import last_number, suffixed, write_atomically, write_exclusively
from stepprof.host.command_line import command_line
from stepprof.host.own_files import is_foreign
from stepprof.host.subprocesses import run_bounded
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.post_step.completeness import OUTCOMES, Step
from stepprof.redaction.messages import redacted
from stepprof.run.folders import make_folder
from stepprof.run.layout import AFTER, MANIFEST, ON_COMPLETE, step_folder
from stepprof.run.schema import CompletionEntry

LOST = "the process ended before the command did"
AT_THE_END = "the run ended"
NOT_KNOWN = "it ended, but its exit status is not known: other code in this process reaps its children"


@dataclass(eq=False, kw_only=True)
class Completer:
    """Runs the command of one configuration."""

    run: Path
    """The run directory."""
    argv: Sequence[str]
    """The command."""
    timeout_seconds: float
    """After this, the command is killed."""
    header: Mapping[str, object]
    """The run and the writer, for the files with the results."""
    stop: threading.Event
    """Kills the command early."""
    uploaded_to: str | None
    """The URL of the uploads; None: there are none."""
    last_error: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Count the earlier jobs in the same run that have ended. Files are counted, because the clock
        of the file system may differ from ours.
        """
        self._earlier = last_number(self.run / AFTER / ON_COMPLETE)

    def missing(self) -> str | None:
        """Return why the command cannot be started here; None if it can."""
        if shutil.which(self.argv[0]) is None:
            return f"on_complete: there is no command {self.argv[0]} here, or it may not be run"
        return None

    def for_step(self, step: Step) -> Path | None:
        """Run the command for a complete step. Return the file with the result; None: it is not run here."""
        path = self._ours(self.run / step_folder(step.number) / MANIFEST / ON_COMPLETE)
        if os.path.lexists(path):
            return None
        facts = {"STEPPROF_STEP": str(step.number), "STEPPROF_STEP_DIR": str(self.run / step_folder(step.number))}  # fmt: skip
        return self._take(path, {"step": step.number}, facts, [step])

    def for_run(self, steps: Sequence[Step]) -> Path | None:
        """Run the command for the run as it is now. Return None if another process of this job has run it."""
        make_folder(self.run, self.run / AFTER)
        path = self._ours(suffixed(self.run / AFTER / ON_COMPLETE, self._earlier + 1))
        if os.path.lexists(path):
            return None
        facts = {"STEPPROF_RECORDED_STEPS": ",".join(str(step.number) for step in steps)}
        return self._take(path, {}, facts, steps)

    def _ours(self, path: Path) -> Path:
        """Return the first name from `path` on that is not another user's file, which would claim the command."""
        number = 1
        while is_foreign(found := suffixed(path, number)):
            logger.warning(
                "on_complete.ignored", path=str(found), reason="it does not belong to this job's user"
            )
            number += 1
        return found

    def _take(
        self, path: Path, where: Mapping[str, object], facts: Mapping[str, str], steps: Sequence[Step]
    ) -> Path | None:
        """Claim the command and run it. If no time is left, leave it to another process or a later job."""
        if self.stop.is_set():
            return None
        entry = CompletionEntry(
            command=command_line(self.argv, os.environ), error=LOST, start_unix_ns=real_time.time_ns()
        )
        content = {**self.header, **where}
        try:
            if not write_exclusively(path, _dump(content, entry)):
                return None
        except ours(OSError) as error:
            self._note(f"not run: {error}", where)
            return None
        entry.update(**self._perform(facts, steps))
        if entry.status == "complete":
            logger.info("on_complete.finished", **where, seconds=entry.seconds)
        else:
            self._note(str(entry.error), where, output=entry.output[-500:])
        try:
            write_atomically(path, _dump(content, entry))
        except ours(OSError) as error:
            self._note(f"the outcome cannot be written: {error}", where)
        return path

    def _perform(self, facts: Mapping[str, str], steps: Iterable[Step]) -> dict[str, Any]:
        env = {**os.environ, **self._facts(steps), **facts, "STEPPROF": "0"}
        try:
            ended = run_bounded(self.argv, env, self.timeout_seconds, self.stop, AT_THE_END)
        except ours(OSError, ValueError) as error:
            return {"status": "failed", "error": redacted(f"it cannot be started: {error}"), "seconds": 0.0}
        outcome: dict[str, Any] = {
            "exit_status": ended.status,
            "seconds": round(ended.seconds, 3),
            "output": "\n".join(map(redacted, ended.output.split("\n"))),
        }
        if ended.killed is not None:
            return {**outcome, "status": "failed", "error": f"killed: {ended.killed}"}
        if ended.status:
            how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
            return {**outcome, "status": "failed", "error": f"it ended with {how}"}
        if ended.status is None:
            return {**outcome, "status": "failed", "error": NOT_KNOWN}
        return {**outcome, "status": "complete", "error": None}

    def _facts(self, steps: Iterable[Step]) -> dict[str, str]:
        steps = list(steps)
        known = {
            "STEPPROF_RUN": str(self.run),
            "STEPPROF_RUN_ID": str(self.header["run_id"]),
            "STEPPROF_STATUS": max((step.status for step in steps), key=OUTCOMES.index, default="complete"),
            "STEPPROF_BYTES": str(sum(step.bytes for step in steps)),
        }
        return known if self.uploaded_to is None else {**known, "STEPPROF_UPLOADED_TO": self.uploaded_to}

    def _note(self, reason: str, where: Mapping[str, object], **fields: object) -> None:
        self.last_error = redacted(f"on_complete: {reason}")
        logger.warning("on_complete.failed", **where, reason=reason, **fields)


def _dump(content: Mapping[str, object], entry: CompletionEntry) -> bytes:
    return json.dumps({**content, "completions": [entry.to_dict()]}, indent=1).encode()
