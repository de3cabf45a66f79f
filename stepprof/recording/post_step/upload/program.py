"""Run the upload program: start it for the first file, pass it file after file, kill it on timeout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.host import subprocesses
from stepprof.host.readable import readable
from stepprof.recording.post_step.upload import child as uploadjob
from stepprof.redaction.messages import quoted

PAUSE_SECONDS = 0.5
"""The pause before the second try; it doubles with each try."""
MOST_REASON = 500
"""Maximum characters of the reason for a failed upload."""
FAILED = "the upload program"


class Program:
    """The upload program. If it ends or hangs, the next file starts it again."""

    def __init__(self, url: str, stop: threading.Event, tries: int) -> None:
        self._url = url
        self._tries = tries
        self._stop = stop
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._errors.close()

    def upload(
        self, local: Path, name: str, deadline: float, *, replace: bool = False, remove: bool = False
    ) -> dict[str, Any]:
        """Upload one file, and remove it again with `remove`. Return the outcome."""
        began = time.monotonic()
        try:
            if self._child is None:
                self._start(deadline)
            answer = self._ask(
                {"local": str(local), "name": name, "replace": replace, "remove": remove}, deadline
            )
        except (OSError, ValueError) as error:
            self._end()
            seconds = round(time.monotonic() - began, 3)
            answer = uploadjob.failed(tries=1, error=str(error), seconds=seconds)
        reason = answer.get("error")
        return {**answer, "error": None if reason is None else quoted(reason, MOST_REASON)}

    def _start(self, deadline: float) -> None:
        self._received = b""
        self._errors.seek(0)
        self._errors.truncate()
        env = {**os.environ, "STEPPROF": "0"}
        self._child = subprocesses.start([sys.executable, "-c", _program()], env, errors=self._errors)
        answer = self._ask({"url": self._url, "tries": self._tries, "pause_seconds": PAUSE_SECONDS}, deadline)
        if "ready" not in answer:
            raise OSError(answer.get("error", f"{FAILED} did not start"))

    def _ask(self, question: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            OSError: there is none in time.
            ValueError: it is no JSON object.
        """
        child = self._child
        assert child is not None  # noqa: S101 - narrows a type; no input decides it
        assert child.stdin is not None  # noqa: S101 - narrows a type; no input decides it
        assert child.stdout is not None  # noqa: S101 - narrows a type; no input decides it
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
        answers = child.stdout.fileno()
        while b"\n" not in self._received:
            if self._stop.is_set():
                raise OSError("the run ended before the upload did")
            if time.monotonic() > deadline:
                raise OSError("the upload timed out")
            if readable([answers], min(max(deadline - time.monotonic(), 0.0), 0.2)):
                data = os.read(answers, 1 << 16)
                if not data:
                    raise OSError(f"{FAILED} ended{self._last_error()}")
                self._received += data
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"{FAILED} answered {line[:100]!r}")
        return answer

    def _last_error(self) -> str:
        """Return the last line that the program wrote to its stderr, to follow a message."""
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - 4000, 0))
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f": {said[-1]}" if said else ""

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            subprocesses.end(child)


def _program() -> str:
    """Return the program's code. It uses the module path of the job, not the job's current folder."""
    path = [str(entry) for entry in sys.path]
    return f"import sys; sys.path[:] = {path!r}; from {uploadjob.__name__} import main; sys.exit(main())"
