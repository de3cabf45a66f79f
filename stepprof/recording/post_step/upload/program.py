"""The program that uploads, as the process sees it that recorded: started when there is something to upload, asked for one file after the other, and killed when its time is over."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepprof.host import subprocesses
from stepprof.recording.post_step.upload import child as uploadjob
from stepprof.redaction import quoted

__all__ = ["Program"]

PAUSE_SECONDS = 0.5
"""Before the second try; twice as long before each further one."""
MOST_REASON = 500
"""Characters of the reason why something is not uploaded."""
FAILED = "the upload program"


class Program:
    """The program that uploads, started when it is asked for something. One that has ended, or hangs, is started anew for the next file."""

    def __init__(self, url: str, stop: threading.Event, tries: int) -> None:
        self._url = url
        self._tries = tries
        self._stop = stop
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._errors = b""

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def upload(
        self, local: Path, name: str, deadline: float, *, replace: bool = False, remove: bool = False
    ) -> dict[str, Any]:
        """Have one file uploaded, and removed again where it was only a trial; return the outcome."""
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
            answer = {"status": "failed", "bytes": None, "verified": None, "tries": 1, "reason_code": None, "error": str(error), "seconds": seconds}  # fmt: skip
        reason = answer.get("error")
        return {**answer, "error": None if reason is None else quoted(reason, MOST_REASON)}

    def _start(self, deadline: float) -> None:
        self._received = self._errors = b""
        env = {**os.environ, "STEPPROF": "0"}
        self._child = subprocesses.start([sys.executable, "-c", _program()], env, talks=True)
        for pipe in (self._child.stdout, self._child.stderr):
            assert pipe is not None  # noqa: S101 - narrows a type; no input decides it
            os.set_blocking(pipe.fileno(), False)
        answer = self._ask({"url": self._url, "tries": self._tries, "pause_seconds": PAUSE_SECONDS}, deadline)
        if "ready" not in answer:
            raise OSError(answer.get("error", f"{FAILED} did not start"))

    def _ask(self, question: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Its answer. Raises OSError where there is none in time, and ValueError where it is none."""
        child = self._child
        assert child is not None  # noqa: S101 - narrows a type; no input decides it
        assert child.stdin is not None  # noqa: S101 - narrows a type; no input decides it
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
        while b"\n" not in self._received:
            if self._stop.is_set():
                raise OSError("the run has ended before it was uploaded")
            if time.monotonic() > deadline:
                raise OSError("it was not uploaded in time")
            if not self._read(child, min(max(deadline - time.monotonic(), 0.0), 0.2)):
                said = self._errors.decode("utf-8", "replace").strip().splitlines()
                raise OSError(f"{FAILED} ended{': ' + said[-1] if said else ''}")
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise ValueError(f"{FAILED} answered {line[:100]!r}")
        return answer

    def _read(self, child: subprocess.Popen[bytes], seconds: float) -> bool:
        """Take what it says; False where it says no more."""
        assert child.stdout is not None  # noqa: S101 - narrows a type; no input decides it
        assert child.stderr is not None  # noqa: S101 - narrows a type; no input decides it
        poller = select.poll()
        for pipe in (child.stdout, child.stderr):
            poller.register(pipe.fileno(), select.POLLIN)
        goes_on = True
        for descriptor, _ in poller.poll(seconds * 1000):
            with contextlib.suppress(BlockingIOError):
                data = os.read(descriptor, 1 << 16)
                if descriptor == child.stdout.fileno():
                    self._received += data
                    goes_on = bool(data)
                elif data:
                    self._errors = (self._errors + data)[-4000:]
                else:
                    time.sleep(0.05)  # its errors are at an end, and its answers soon
        return goes_on

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            subprocesses.end(child)


def _program() -> str:
    """What it runs: with the modules that the job finds, and no others, such as those of the folder that the job runs in."""
    path = [str(entry) for entry in sys.path]
    return f"import sys; sys.path[:] = {path!r}; from {uploadjob.__name__} import main; sys.exit(main())"
