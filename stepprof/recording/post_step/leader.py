"""Do the work after a recorded step, on background threads: uploads, the `on_complete` command,
retention.

Each process uploads its own recordings. One process of the run, the leader, does the rest: once a
second it looks for complete steps, runs the command for each, and deletes artifacts beyond the
budget. The first process becomes the leader; if it ends or dies, another one takes over. This
module is loaded only if one of these is configured.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.host import real_time
from stepprof.host.atomic_files import last_number, suffixed, write_atomically, write_exclusively
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.post_step.completeness import Peers, Step, read_step_for
from stepprof.recording.post_step.hook import Completer
from stepprof.recording.post_step.retention import choose, prune
from stepprof.recording.post_step.upload.uploads import Uploader, missing
from stepprof.run.folders import make_folder
from stepprof.run.layout import AFTER, MANIFEST, PRUNED, step_folder
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.runs import steps
from stepprof.run.schema import UploadEntry

if TYPE_CHECKING:
    from stepprof.config.config import Config
    from stepprof.run.layout import RunDir
    from stepprof.run.manifest_writer import Fragment

LOOK_SECONDS = 1.0
MANY_RANKS = 64
MANY_LOOK_SECONDS = 5.0
"""Interval of the leader's looks in a larger job, and of the other ranks' looks for a leader."""

LATE_SECONDS = 600.0
"""A step whose known entries have been final for this long is complete, although ranks have not
reached its end.
"""

LEADER = "leader.json"


class After:
    """The post-step work of one process.

    Args:
        config: the configuration.
        run: the run directory.
        origin: the identity of this process.
    """

    def __init__(self, config: Config, run: RunDir, origin: Origin) -> None:
        self._run = run
        self._origin = origin
        self._stop = threading.Event()
        self.uploader: Uploader | None = None
        self._refused: str | None = None
        if config.upload is not None:
            self._refused = missing(config.upload)
            if self._refused is None:
                self.uploader = Uploader(run, config.upload, config.upload_timeout_seconds)
            else:
                logger.warning("upload.refused", reason=self._refused)
        self.leader: Leader | None = None
        if config.on_complete is not None or _prunes(config):
            self.leader = Leader(config, run, origin, self._stop, self.uploader)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stepprof-after", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        if self.uploader is not None:
            self._origin.observers.append(self.uploader.take)
            self.uploader.start()
        elif self._refused is not None:
            self._origin.observers.append(self._refuse)
        if self.leader is not None:
            self._thread.start()

    @property
    def pending(self) -> int:
        """Return the number of pending uploads."""
        return 0 if self.uploader is None else self.uploader.pending

    @property
    def last_error(self) -> str | None:
        """Return the last error, or None."""
        for each in (self.uploader, None if self.leader is None else self.leader.completer):
            if each is not None and each.last_error is not None:
                return each.last_error
        return self._refused

    def _refuse(self, fragment: Fragment) -> None:
        """Write into the manifest why the artifacts cannot be uploaded here."""
        paths = fragment.artifact_paths()
        if not fragment.awaited and len(fragment.uploads) != len(paths):
            fragment.uploads = [UploadEntry(path=path, tries=0, error=self._refused) for path in paths]
            fragment.save()

    def _look(self) -> None:
        leader = self.leader
        assert leader is not None  # noqa: S101 - narrows a type; no input decides it
        while not self._ended.wait(leader.pause_seconds):
            self._try(lambda: leader.look(final=False))
        self._try(lambda: leader.look(final=True))

    @staticmethod
    def _try(work: Callable[[], object]) -> None:
        try:
            work()
        except ours(Exception) as error:  # the next check may succeed
            logger.warning("post_step.failed", reason=describe_error(error))

    # -- the end

    def finish_uploads(self, timeout: float, files: list[Path]) -> None:
        """Upload `files` and the pending ones, for at most `timeout` seconds. All exports have ended."""
        if self.uploader is not None:
            self.uploader.close(timeout, files)

    def close(self, timeout: float) -> None:
        """Look for the last time, after the final status. Kill a command after `timeout` seconds."""
        if self.leader is None:
            return
        self._ended.set()
        self._thread.join(timeout)
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)


class Leader:
    """What one process does for the whole run: the command and the retention.

    Args:
        config: the configuration.
        run: the run directory.
        origin: the identity of this process.
        stop: ends a command.
        uploader: uploads the files that are written here.
    """

    def __init__(
        self, config: Config, run: RunDir, origin: Origin, stop: threading.Event, uploader: Uploader | None
    ) -> None:
        self._config = config
        self._path = run.path
        self._origin = origin
        self._uploader = uploader
        self._uploads = config.upload is not None
        self._peers = Peers(run.path)
        self._stop = stop
        self._claim: Path | None = None
        self._looked = -MANY_LOOK_SECONDS
        self._whole: dict[int, Step] = {}
        self._settled_at: dict[int, float] = {}
        self._failed = False
        self._passed_over: set[Path] = set()
        self._header = {"schema_version": 1, "run_id": run.run_id, "writer": origin.writer}
        self.completer: Completer | None = None
        if config.on_complete is not None:
            self.completer = Completer(
                run=run.path,
                argv=config.on_complete,
                timeout_seconds=config.on_complete_timeout_seconds,
                header=self._header,
                stop=stop,
                uploaded_to=None if uploader is None else uploader.url,
            )
            problem = self.completer.missing()
            if problem is not None:
                logger.warning("on_complete.will_fail", reason=problem)

    @property
    def pause_seconds(self) -> float:
        """Return the seconds until the next look."""
        many = (self._origin.world_size or 1) > MANY_RANKS
        return MANY_LOOK_SECONDS if many else LOOK_SECONDS

    def look(self, *, final: bool) -> None:
        """Find the steps that have become complete, and do the work for them."""
        try:
            if self._is_leader(final=final):
                self._attend(final=final)
            self._failed = False
        except ours(OSError) as error:
            if not self._failed:
                logger.warning("post_step.failed", reason=f"the run directory cannot be used: {error}")
            self._failed = True

    def _attend(self, *, final: bool) -> None:
        open_steps = [number for number in steps(self._path) if number not in self._whole]
        if open_steps or final:
            self._peers.look()  # up to thousands of files: read only when a step is open
        new = [number for number in open_steps if self._is_whole(number)]
        config = self._config
        for number in new:
            if self.completer is not None and config.on_complete_when == "step":
                self._share(self.completer.for_step(self._whole[number]))
        # the step is kept if no time was left for its command
        if new and _prunes(config) and not self._stop.is_set():
            self._prune()
        if final and self.completer is not None and config.on_complete_when == "run":
            recorded = [self._whole[number] for number in sorted(self._whole) if self._whole[number].windows]
            if not self._peers.others(self._origin.writer):
                self._share(self.completer.for_run(recorded))

    def _is_whole(self, number: int) -> bool:
        """Return whether all ranks are past the step and nothing of it is pending. The order matters:
        a rank writes its manifest before it goes on.
        """
        here = self._peers.here(number)
        step = read_step_for(self._path, number, self._peers, uploads=self._uploads)
        if step.pending or not step.windows:
            self._settled_at.pop(number, None)
            return False
        since = self._settled_at.setdefault(number, real_time.monotonic())
        if here and real_time.monotonic() - since < LATE_SECONDS:
            return False
        self._whole[number] = step
        return True

    def _prune(self) -> None:
        whole = [self._whole[number] for number in sorted(self._whole)]
        for step in whole:
            step.artifacts = {path: size for path, size in step.artifacts.items() if self._exists(step, path)}
        limit = self._config.keep_bytes
        keep_bytes = limit if isinstance(limit, int) else None
        for step, reason in choose(whole, self._config.keep_steps, keep_bytes):
            entry = prune(self._path, step, reason, self._header)
            step.artifacts = {}
            self._share(self._path / step_folder(step.number) / MANIFEST / PRUNED)
            logger.info(
                "retention.pruned", step=step.number, bytes=entry.bytes, files=entry.files, reason=reason
            )
            if entry.kept:
                logger.warning("retention.incomplete", step=step.number, kept=entry.kept[:5])

    def _exists(self, step: Step, path: str) -> bool:
        return os.path.lexists(self._path / step_folder(step.number) / path)

    def _share(self, path: Path | None) -> None:
        if path is not None and self._uploader is not None:
            self._uploader.add(path, replace=True)

    # -- the election

    def _is_leader(self, *, final: bool) -> bool:
        """Return whether this process is the leader. It becomes the leader if there is none."""
        if self._claim is None and not self._take_over(final=final):
            return False
        assert self._claim is not None  # noqa: S101 - narrows a type; no input decides it
        if final:
            self._sign(self._claim, over=True)
        elif real_time.monotonic() - self._looked >= MANY_LOOK_SECONDS:
            self._looked = real_time.monotonic()
            self._sign(self._claim, over=False)
        return True

    def _take_over(self, *, final: bool) -> bool:
        now = real_time.monotonic()
        if not final and now - self._looked < MANY_LOOK_SECONDS:
            return False
        self._looked = now
        folder = self._path / AFTER
        number = last_number(folder / LEADER)
        # a look writes nothing: every process of the job looks
        if number and not self._is_free(suffixed(folder / LEADER, number)):
            return False
        make_folder(self._path, folder)
        path = suffixed(folder / LEADER, number + 1)
        if not write_exclusively(path, self._content(over=final)):
            return False
        self._claim = path
        return True

    def _is_free(self, path: Path) -> bool:
        """Return whether the leader has ended or is gone.

        A file of another user does not make its writer the leader.
        """
        if is_foreign(path):
            self._pass_over(path)
            return True
        try:
            content = read_table(path)
            writer, over, signed = content["writer"], content["over"], content["unix_ns"]
            alive = is_alive(writer)
        except ours(OSError, ValueError, LookupError, TypeError, AttributeError):
            return self._peers.silent(str(path), "damaged")
        if over or alive is False:
            return True
        return alive is None and self._peers.silent(str(path), signed)

    def _pass_over(self, path: Path) -> None:
        """Log a file of another user once: it may be meant to prevent the retention."""
        if path not in self._passed_over:
            self._passed_over.add(path)
            logger.warning("leader.ignored", path=str(path), reason="it does not belong to this job's user")

    def _sign(self, path: Path, *, over: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            write_atomically(path, self._content(over=over))

    def _content(self, *, over: bool) -> bytes:
        return json.dumps({**self._header, "unix_ns": real_time.time_ns(), "over": over}).encode()


def _prunes(config: Config) -> bool:
    return config.keep_steps is not None or config.keep_bytes is not None
