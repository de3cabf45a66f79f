"""A process that reads runs, so that a hang, a crash or a lack of memory in it can be observed.

As a program it reads commands of stepprof, one per line, runs each, and answers with a line. The
additional command `init` opens a run as a rank of a job does.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

__all__ = ["COMMANDS", "Outcome", "Reader"]

COMMANDS = {
    "ls": ["ls"],
    "ls RUN": ["ls", "RUN"],
    "show": ["show", "RUN"],
    "show --json": ["show", "RUN", "--step", "2", "--json", "--all"],
    "check": ["check", "RUN", "--workers", "1"],
    "report": ["report", "RUN", "--step", "2", "--workers", "1", "--json", "report.json", "--html", "report.html"],
    "merge": ["merge", "RUN", "--step", "2", "--workers", "1", "--output", "timeline.pftrace"],
    "report --markdown": ["report", "RUN", "--step", "2", "--workers", "1", "--markdown", "report.md"],
    "export": ["export", "RUN", "--parquet", "tables"],
    "spans": ["spans", "RUN"],
    "spans --step": ["spans", "RUN", "--step", "2", "--json"],
    "status": ["status", "RUN"],
    "merge traces": ["merge", "RUN/step-000002/rollout/replica-0", "--workers", "1", "--output", "traces.pftrace"],
    "report traces": ["report", "RUN/step-000002/actor", "--workers", "1", "--json", "traces.json"],
    "report trace": ["report", "RUN/step-000002/actor/rank-0.trace.json.gz", "--workers", "1", "--json", "trace.json"],
    "compare": ["report", "RUN:2", "RUN:3", "--workers", "1", "--json", "compared.json"],
    "trigger": ["trigger", "RUN", "--step", "9"],
    "analyse": ["analyse", "RUN"],
    "run": ["run", "--", "mv", "RUN", "runs/new"],  # last, because later commands find no run
}  # fmt: skip
SECONDS = 20
"""Time limit in seconds. A command on a small run takes 0.1 s; a busy machine is slower."""
MEMORY = 3 << 30
"""Bytes of address space that a command may use in addition to the loaded modules."""


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    status: int
    """The exit status; -1: the command did not end by itself."""
    out: str
    err: str
    traceback: str = ""


class Reader:
    """Runs commands in a process, and starts another process if it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def carry_out(self, command: str, run: Path, folder: Path) -> Outcome:
        """Run a command on a run, in a separate folder."""
        arguments = [re.sub(r"^RUN\b", lambda _: str(run), each) for each in COMMANDS[command]]
        return self._ask(arguments, folder, run.parent)

    def open_run(self, output_dir: Path, environ: Mapping[str, str]) -> Outcome:
        """Call `init` as a rank with this environment; it prints the path of its run."""
        return self._ask(["init"], output_dir, output_dir, environ)

    def _ask(
        self,
        arguments: Sequence[str],
        folder: Path,
        output_dir: Path,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Outcome:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert process.stdin is not None
        assert process.stdout is not None
        task = {
            "arguments": arguments,
            "folder": str(folder),
            "environ": {"STEPPROF_OUTPUT_DIR": str(output_dir), **environ},
        }
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        # the process's own alarm comes first, unless it waits where no signal wakes it
        ready, _, _ = select.select([process.stdout], [], [], 2 * SECONDS)
        line = process.stdout.readline() if ready else b""
        if not line:
            self.close()
            return Outcome(-1, "", "", "the process hung, or died")
        return Outcome(**json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class _TooLong(BaseException):
    """Raised by the alarm; no handler catches it."""


def _alarm(*_: object) -> None:
    raise _TooLong


def _init() -> int:
    """Open a run and end it."""
    import stepprof
    from stepprof.errors import ConfigError
    from stepprof.run import rendezvous

    rendezvous._UNREADABLE_SECONDS = 0.02
    try:
        config = {"steps": "none", "backend": "null", "output_dir": os.environ["STEPPROF_OUTPUT_DIR"]}
        session = stepprof.init(config)
    except ConfigError as error:
        sys.stderr.write(f"stepprof {error}")
        return 2
    assert session is not None
    sys.stdout.write(str(session.path))
    stepprof.shutdown()
    return 0


def _carry_out(task: dict[str, Any]) -> Outcome:
    from stepprof.cli.main import main

    os.environ.update(task["environ"])
    os.chdir(task["folder"])
    # as strict as a terminal: a character that cannot be encoded raises
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    before, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), streams
    found, status = "", -1
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        arguments = task["arguments"]
        status = _init() if arguments == ["init"] else main(arguments)
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - any exception is the finding
        found = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout, sys.stderr = before
    out, err = (stream.buffer.getvalue().decode(errors="replace") for stream in streams)  # type: ignore[attr-defined]
    return Outcome(status, out[-100_000:], err[-10_000:], found[-10_000:])


def _serve() -> None:

    signal.signal(signal.SIGALRM, _alarm)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(_carry_out(json.loads(line)).__dict__) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
