"""Upload the recordings of this process, and write the outcomes into the manifest.

When the final version of a fragment is written, its artifacts are uploaded, then the fragment with
their URLs. The upload program (`stepprof.recording.post_step.upload.child`) runs while there is
something to upload. A thread passes it one file after another, and kills it on timeout.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.formatting import install
from stepprof.host import real_time, subprocesses
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.post_step.upload.program import Program
from stepprof.redaction.messages import redacted
from stepprof.run.layout import RunDir
from stepprof.run.manifest_writer import describe_error
from stepprof.run.names import RUN_FILE
from stepprof.run.reasons import ReasonCode
from stepprof.run.schema import UploadEntry

if TYPE_CHECKING:
    from stepprof.run.manifest_writer import Fragment

TRIES = 4
LAST_TRIES = 2
"""At the end of the run, for failed uploads and the last files."""
REMEMBERED = 256
"""Maximum number of uploaded fragments to remember: a late answer of an engine may still change them."""
REMEMBERED_FAILURES = 4096
"""Maximum number of fragments with failures to remember, for a retry at the end of the run."""


def missing(url: str) -> str | None:
    """Return which package is missing for this URL and how to install it; None if all are there.

    >>> missing("file:///data") is None or "fsspec" in missing("file:///data")
    True
    """
    if importlib.util.find_spec("fsspec") is None:
        return f"fsspec is not installed: {install('upload')}"
    from fsspec.registry import known_implementations

    known: Mapping[str, str] = known_implementations.get(url.partition("://")[0], {})
    module = str(known.get("class", "fsspec")).partition(".")[0]
    if importlib.util.find_spec(module) is None:
        return f"{url} needs {module}, which is not installed: pip install {module}"
    return None


@dataclass(slots=True)
class _Due:
    """A fragment, and the state of its uploads."""

    fragment: Fragment
    outcomes: dict[str, UploadEntry] = field(default_factory=dict)
    """Outcomes by the path of an artifact below the step's folder."""
    sent: bool = False
    """Whether a version of the fragment itself was uploaded."""
    uploaded_word: object = None
    """The content of the last version that was uploaded, or that failed."""

    @property
    def well(self) -> bool:
        """Return whether everything was uploaded."""
        return self.sent and all(each.status == "uploaded" for each in self.outcomes.values())


class Uploader:
    """The uploads of this process.

    Args:
        run: the run.
        url: the target; the uploads are in a folder with the run's id.
        timeout_seconds: maximum seconds for one fragment with its artifacts.
    """

    def __init__(self, run: RunDir, url: str, timeout_seconds: float) -> None:
        self.url = f"{url}/{run.run_id}"
        self.failures = 0
        self.last_error: str | None = None
        self._run = run
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._known: dict[int, _Due] = {}
        self._queue: dict[int, _Due] = {}
        self._plain: list[tuple[Path, bool]] = []
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._ending = False
        self._deadline = float("inf")
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._work, name="stepprof-upload", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.add(self._run.path / RUN_FILE, replace=False, wake=False)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Return the number of fragments and files that are queued or being uploaded."""
        with self._lock:
            return len(self._queue) + len(self._plain)

    def take(self, fragment: Fragment) -> None:
        """Queue a fragment that was written, if nothing of it is pending. Never block."""
        if fragment.claim is None or fragment.awaited:
            return
        with self._lock:
            due = self._known.setdefault(id(fragment), _Due(fragment))
            if due.uploaded_word != fragment.word():
                self._queue[id(fragment)] = due
                self._idle.clear()
        self._wake.set()

    def add(self, path: Path, *, replace: bool, wake: bool = True) -> None:
        """Queue another file of the run."""
        with self._lock:
            self._plain.append((path, replace))
            if wake:
                self._idle.clear()
        if wake:
            self._wake.set()

    def close(self, timeout: float, files: list[Path]) -> None:
        """Retry the failed uploads, upload `files`, and wait for at most `timeout` seconds."""
        deadline = real_time.monotonic() + timeout
        self._idle.wait(timeout)
        with self._lock:
            for key, due in self._known.items():
                if not due.well:
                    due.outcomes = {
                        path: each for path, each in due.outcomes.items() if each.status == "uploaded"
                    }
                    self._queue.setdefault(key, due)
            self._plain += [(file, True) for file in files]
            unfinished = len(self._queue) + len(self._plain)
            self._deadline = deadline
            self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(max(deadline - real_time.monotonic(), 0.0) + 0.5)
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(subprocesses.DEATH_SECONDS)
        if unfinished and self.pending:
            logger.warning("upload.unfinished", uploads=self.pending, url=self.url, seconds=round(timeout, 1))

    # -- the thread

    def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            ending = self._ending
            try:
                self._upload_all(ending)
            except ours(Exception) as error:  # the rest is tried again at the end, and logged
                self._fail(describe_error(error))
            self._idle.set()
            if ending:
                return

    def _upload_all(self, ending: bool) -> None:
        """Upload everything in the queue with one run of the program. What `close` queues waits for the next run, which tries less often."""
        with Program(self.url, self._stop, LAST_TRIES if ending else TRIES) as program:
            while not self._stop.is_set() and self._ending == ending:
                with self._lock:
                    due = next(iter(self._queue.values()), None)
                    plain = None if due is not None or not self._plain else self._plain[0]
                if due is not None:
                    self._upload(program, due)
                    with self._lock:
                        if due.uploaded_word == due.fragment.word():
                            self._queue.pop(id(due.fragment), None)
                        self._forget()
                elif plain is not None:
                    self._upload_plain(program, *plain)
                    with self._lock:
                        self._plain.remove(plain)
                else:
                    return

    def _forget(self) -> None:
        """Forget the oldest fragments: a run may have any number of recorded steps."""
        idle = [key for key in self._known if key not in self._queue]
        well = [key for key in idle if self._known[key].well]
        for key in (*well[:-REMEMBERED], *idle[:-REMEMBERED_FAILURES]):
            self._known.pop(key, None)

    def _bound(self) -> float:
        return min(real_time.monotonic() + self._timeout_seconds, self._deadline)

    def _upload(self, program: Program, due: _Due) -> None:
        """Upload the artifacts of a fragment, then the fragment."""
        fragment, deadline = due.fragment, self._bound()
        assert fragment.claim is not None  # noqa: S101 - narrows a type; no input decides it
        folder = fragment.claim.folder
        word = fragment.word()
        for path in fragment.artifact_paths():
            known = due.outcomes.get(path)
            if known is None or known.status != "uploaded":
                outcome = program.upload(folder / path, f"{folder.name}/{path}", deadline)
                due.outcomes[path] = self._log_outcome(path, f"{folder.name}/{path}", outcome)
        fragment.uploads = list(due.outcomes.values())
        fragment.write()
        name = fragment.claim.fragment.relative_to(self._run.path).as_posix()
        outcome = program.upload(fragment.claim.fragment, name, deadline, replace=due.sent)
        due.sent = due.sent or outcome["status"] == "uploaded"
        self._log_outcome(name, name, outcome, is_artifact=False)
        due.uploaded_word = word

    def _upload_plain(self, program: Program, path: Path, replace: bool) -> None:
        if not path.is_file():
            return
        name = path.relative_to(self._run.path).as_posix()
        outcome = program.upload(path, name, self._bound(), replace=replace)
        # nodes that share no disk each have a run.json: the first one stays
        if name != RUN_FILE or outcome["reason_code"] != ReasonCode.NAME_TAKEN:
            self._log_outcome(name, name, outcome, is_artifact=False)

    def _log_outcome(
        self, path: str, name: str, outcome: Mapping[str, Any], *, is_artifact: bool = True
    ) -> UploadEntry:
        """Log an outcome and return its entry. `path` is below the step's folder, `name` below the run's."""
        entry = UploadEntry(path=path, url=f"{self.url}/{name}", **outcome)
        if entry.status == "uploaded":
            sent = {"url": entry.url, "bytes": entry.bytes, "seconds": entry.seconds}
            if is_artifact:
                logger.info("upload.finished", **sent)
            else:
                logger.debug("upload.file_finished", **sent)
        else:
            self._fail(f"{name}: {entry.error}")
        return entry

    def _fail(self, reason: str) -> None:
        self.failures += 1
        self.last_error = redacted(f"upload: {reason}")
        logger.warning("upload.failed", url=self.url, reason=reason)
