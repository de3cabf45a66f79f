"""Run the `on_complete` command: once for each step, or once at the end of the run.

A file is created before the command begins: `manifest/on-complete.json` of the step, or
`after/on-complete.json` of the run. It has the command and its result. If the follower dies meanwhile,
the file says `lost`, and the command is not run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepprof.follow.below import own
from stepprof.follow.completeness import OUTCOMES, Step
from stepprof.host import real_time
from stepprof.host.atomic_files import suffixed, write_atomically, write_exclusively
from stepprof.host.command_line import command_line
from stepprof.host.plain_files import read_table
from stepprof.host.subprocesses import run_bounded
from stepprof.log import logger
from stepprof.redaction.messages import redacted
from stepprof.run.layout import AFTER, MANIFEST, ON_COMPLETE, step_folder
from stepprof.run.schema import CompletionEntry

LOST = "the follower ended before the command did"


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
    uploaded_to: str | None
    """The URL of the run's uploads; None: there are none."""
    failures: int = 0

    def for_step(self, step: Step) -> None:
        """Run the command for a complete step, unless it was run before."""
        folder = self.run / step_folder(step.number)
        path = own(self.run, folder / MANIFEST / ON_COMPLETE)
        if not os.path.lexists(path):
            facts = {"STEPPROF_STEP": str(step.number), "STEPPROF_STEP_DIR": str(folder)}
            self._take(path, {"step": step.number}, facts, [step])

    def for_run(self, steps: Sequence[Step], last_start_unix_ns: int) -> None:
        """Run the command for the run as it is now, unless it was run for the same job before.

        Args:
            steps: the recorded steps.
            last_start_unix_ns: when the latest process of the run started.
        """
        number = 1
        while os.path.lexists(path := own(self.run, suffixed(self.run / AFTER / ON_COMPLETE, number))):
            try:
                if read_table(path).get("last_start_unix_ns") == last_start_unix_ns:
                    return
            except (OSError, ValueError):  # damaged: it may have been run
                return
            number += 1
        facts = {"STEPPROF_RECORDED_STEPS": ",".join(str(step.number) for step in steps)}
        self._take(path, {"last_start_unix_ns": last_start_unix_ns}, facts, steps)

    def _take(
        self, path: Path, where: Mapping[str, object], facts: Mapping[str, str], steps: Sequence[Step]
    ) -> None:
        """Claim the command and run it."""
        entry = CompletionEntry(
            command=command_line(self.argv, os.environ), error=LOST, start_unix_ns=real_time.time_ns()
        )
        content = {**self.header, **where}
        bound: dict[str, Any] = {"step": where["step"]} if "step" in where else {}
        try:
            if not write_exclusively(path, _dump(content, entry)):
                return
        except OSError as error:
            self._fail(f"not run: {error}", bound)
            return
        entry.update(**self._perform(facts, steps))
        if entry.status == "complete":
            logger.notice("on_complete.finished", **bound, seconds=entry.seconds)
        else:
            self._fail(str(entry.error), bound, output=entry.output[-500:])
        try:
            write_atomically(path, _dump(content, entry))
        except OSError as error:
            self._fail(f"the result cannot be written: {error}", bound)

    def _perform(self, facts: Mapping[str, str], steps: Sequence[Step]) -> dict[str, Any]:
        env = {**os.environ, **self._facts(steps), **facts, "STEPPROF": "0"}
        try:
            ended = run_bounded(self.argv, env, self.timeout_seconds)
        except (OSError, ValueError) as error:
            return {"status": "failed", "error": redacted(f"it cannot be started: {error}"), "seconds": 0.0}
        result: dict[str, Any] = {
            "status": "failed",
            "exit_status": ended.status,
            "seconds": round(ended.seconds, 3),
            "output": "\n".join(map(redacted, ended.output.split("\n"))),
        }
        if ended.killed is not None:
            return {**result, "error": f"killed: {ended.killed}"}
        if ended.status:
            how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
            return {**result, "error": f"it ended with {how}"}
        return {**result, "status": "complete", "error": None}

    def _facts(self, steps: Sequence[Step]) -> dict[str, str]:
        known = {
            "STEPPROF_RUN": str(self.run),
            "STEPPROF_RUN_ID": str(self.header["run_id"]),
            "STEPPROF_STATUS": max((step.status for step in steps), key=OUTCOMES.index, default="complete"),
            "STEPPROF_BYTES": str(sum(step.bytes for step in steps)),
        }
        return known if self.uploaded_to is None else {**known, "STEPPROF_UPLOADED_TO": self.uploaded_to}

    def _fail(self, reason: str, where: Mapping[str, Any], **fields: object) -> None:
        self.failures += 1
        logger.warning("on_complete.failed", **where, reason=reason, **fields)


def _dump(content: Mapping[str, object], entry: CompletionEntry) -> bytes:
    return json.dumps({**content, "completions": [entry.to_dict()]}, indent=1).encode()
