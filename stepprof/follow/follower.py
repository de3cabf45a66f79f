"""Follow a run: find the steps that are complete, and upload them, run the command and delete artifacts beyond the budget.

One process follows a run, the one that holds its lock. It reads the run directory and nothing of the
job. It may be killed at any time: the next one does what is left.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from stepprof.config.config import Config
from stepprof.config.options.otel import OtelOptions
from stepprof.config.options.watch import WatchOptions
from stepprof.errors import ConfigError
from stepprof.follow.completeness import Peers, Step, read_step_for
from stepprof.follow.lock import Lock
from stepprof.follow.on_complete import Completer
from stepprof.follow.otel import Sender
from stepprof.follow.retention import choose, prune
from stepprof.follow.tail import Tail
from stepprof.follow.upload import Store
from stepprof.follow.uploads import Uploads
from stepprof.follow.watch import Watch
from stepprof.host import real_time
from stepprof.host.own_files import is_foreign
from stepprof.host.process_identity import writer_identity
from stepprof.log import bound, logger
from stepprof.run.layout import MANIFEST, step_folder
from stepprof.run.names import RUN_FILE, is_plain_name
from stepprof.run.runs import read_run, run_id_of, steps

RESTART_SECONDS = 600.0
"""A run whose processes are gone, and have not all ended well, is over after this time: a launcher may
start them again.
"""

LATE_SECONDS = 600.0
"""A step whose known entries have been final for this long is complete, although ranks have not
reached its end.
"""

FRESH_SECONDS = 2.0
"""A folder that has changed so recently may change again without another time of its change."""


class Follower:
    """The work for one run.

    Args:
        run: the run directory.
        config: the configuration of the follower.

    Raises:
        ConfigError: the run is another user's.
    """

    def __init__(self, run: Path, config: Config) -> None:
        if is_foreign(run / RUN_FILE):
            user = (run / RUN_FILE).lstat().st_uid
            raise ConfigError(f"{run}: the run belongs to user {user}; only that user can follow it")
        self._run = run
        self._config = config
        self._header = {"schema_version": 1, "run_id": run_id_of(run), "writer": writer_identity()}
        self._lock = Lock(run)
        self._peers = Peers(run)
        self._complete: dict[int, Step] = {}
        self._seen: dict[int, int] = {}
        """When the manifest of each complete step was changed, as far as it was read."""
        self._settled_at: dict[int, float] = {}
        self._finished = self._has_room = False
        self._finished_for: object = None
        """The statuses for which the work at the end is done: it is not done again until they change."""
        self._deleted = 0
        """How many artifacts were deleted that were not uploaded."""
        self.exporting: list[int] = []
        """The steps that processes still export whose parents have ended."""
        self._reason: str | None = None
        url = None if config.upload is None else f"{config.upload}/{stored_name(run)}"
        self._uploads: Uploads | None = None
        if url is not None:
            self._uploads = Uploads(Store(url, config.upload_timeout_seconds), run, self._header)
        self._watch: Watch | None = None
        if isinstance(config.watch, WatchOptions) and config.watch.enabled:
            self._watch, self._tail = Watch(run, config, config.watch), Tail(run)
        self._sender: Sender | None = None
        if isinstance(config.otel, OtelOptions) and config.otel.enabled:
            self._sender = Sender(run, run_id_of(run), config.otel)
        self._completer: Completer | None = None
        if config.on_complete is not None:
            self._completer = Completer(
                run=run,
                argv=config.on_complete,
                timeout_seconds=config.on_complete_timeout_seconds,
                header=self._header,
                uploaded_to=url,
            )

    @property
    def has_failed(self) -> bool:
        """Return whether something could not be done."""
        commands = 0 if self._completer is None else self._completer.failures
        unsent = self._sender is not None and self._sender.has_failed
        left = self._uploads is not None and self._uploads.has_failed
        return self._reason is not None or commands + self._deleted > 0 or left or unsent

    @property
    def alive(self) -> list[str]:
        """Return the names of the status files of processes that are still running."""
        return self._peers.alive

    def look(self, restart_seconds: float = RESTART_SECONDS) -> bool:
        """Do the work for the steps that have become complete. At the end of the run, do the rest.

        Args:
            restart_seconds: how long processes that have not ended well may be started again.

        Returns:
            Whether the run is over.
        """
        with bound({"run_id": self._header["run_id"]}):
            return self._look(restart_seconds)

    def _look(self, restart_seconds: float) -> bool:
        reason: object = None
        over = False
        try:
            self._peers.look()
            over = self._peers.over(restart_seconds)
            finished_for = restart_seconds, self._peers.reports
            if over and finished_for == self._finished_for:
                return True
            if not self._run.is_dir():
                return over
            if not self._lock.take():
                return False  # the other follower may have missed the end
            over, failed = self._attend(over=over)
            if over and failed is None:
                self._finished_for = finished_for
            reason = None if failed is None else f"the run directory cannot be used: {failed}"
        except OSError as error:
            reason = f"the run directory cannot be used: {error}"
        except Exception as error:  # noqa: BLE001 - a damaged run must not end the work for others
            reason = f"{type(error).__name__}: {error}"
        if reason is not None and reason != self._reason:
            logger.warning("follow.failed", reason=reason)
        self._reason = None if reason is None else str(reason)
        return over

    def close(self) -> None:
        """Release the run."""
        if self._sender is not None:
            self._sender.close()
        self._lock.release()

    def _attend(self, *, over: bool) -> tuple[bool, OSError | None]:
        """Do the work. Return whether the run is over and nothing is exported any more, and what prevented a part."""
        if self._watch is not None:
            for line in self._tail.read():
                self._watch.take(line)
            self._watch.look(self._peers.statuses)
        if self._sender is not None:
            self._sender.look()
        if over and not self._finished and self._uploads is not None:
            self._uploads.retry()
        failed: OSError | None = None
        self.exporting = []
        for number in sorted(steps(self._run), key=self._failures):
            try:
                if self._work_on(number, over=over):
                    self.exporting.append(number)
            except OSError as error:
                failed = failed or error
        try:
            self._prune()  # also on a full disk, which prevents the rest
        except OSError as error:
            failed = failed or error
        self._finished = over and not self.exporting
        if self._finished:
            self._finish()
        return self._finished, failed

    def _work_on(self, number: int, *, over: bool) -> bool:
        """Upload a step that is complete, and run the command. Return whether it is still being exported."""
        changed = _modified(self._run / step_folder(number) / MANIFEST)
        step = self._complete.get(number)
        if step is None or changed is None or changed != self._seen.get(number):
            step, exporting = self._read(number, over=over)
            if step is None:
                self._complete.pop(number, None)
                return exporting
            self._complete[number], self._has_room = step, False
            self._seen.pop(number, None)
            if self._uploads is not None:
                self._uploads.upload_step(step)
            if self._completer is not None and self._config.on_complete_when == "step":
                self._completer.for_step(step)
            if changed is not None:
                self._seen[number] = changed
        elif self._uploads is not None and self._uploads.is_due(number):
            self._uploads.upload_step(step)
        return False

    def _read(self, number: int, *, over: bool) -> tuple[Step | None, bool]:
        """Return a step if it is complete, and whether a process that a dead one has left still exports it.

        It is complete if all ranks are past it and nothing of it is pending. The order matters: a rank
        writes its manifest before it goes on.
        """
        here = self._peers.here(number)
        step = read_step_for(self._run, number, self._peers)
        if step.exporting or (step.pending and not over) or not step.windows:
            self._settled_at.pop(number, None)
            return None, step.exporting
        since = self._settled_at.setdefault(number, real_time.monotonic())
        late = real_time.monotonic() - since >= LATE_SECONDS
        return (None if here and not late else step), False

    def _finish(self) -> None:
        """Do the work at the end of the run: the command, then the files that were not uploaded yet."""
        recorded = [self._complete[number] for number in sorted(self._complete)]
        if self._completer is not None and self._config.on_complete_when == "run":
            self._completer.for_run(recorded, self._peers.last_start_unix_ns)
        if self._sender is not None:
            self._sender.finish()
        if self._uploads is None:
            return
        self._uploads.retry()  # a file that has just failed does not keep the others from it
        self._uploads.upload_run()
        for step in sorted(recorded, key=lambda each: self._failures(each.number)):
            self._uploads.upload_step(step)

    def _failures(self, number: int) -> int:
        """Return how often uploads of a step have failed: such a step comes last."""
        return 0 if self._uploads is None else self._uploads.failures(number)

    def _prune(self) -> None:
        keep_steps, keep_bytes = self._config.keep_steps, self._config.keep_bytes
        if self._has_room or (keep_steps is None and keep_bytes is None):
            return
        complete = [self._complete[number] for number in sorted(self._complete)]
        for step in complete:
            folder = self._run / step_folder(step.number)
            step.artifacts = {
                path: size for path, size in step.artifacts.items() if os.path.lexists(folder / path)
            }
        limit = keep_bytes if isinstance(keep_bytes, int) else None
        failed: OSError | None = None
        for step, reason in choose(complete, keep_steps, limit):
            try:
                entry = prune(self._run, step, reason, self._header)
            except OSError as error:  # as for a link in the place of its folder
                failed = failed or error
                continue
            logger.notice(
                "retention.pruned",
                step=step.number,
                bytes=entry.bytes,
                files=entry.files,
                not_uploaded=step.not_uploaded,
                reason=reason,
            )
            if step.not_uploaded:
                logger.warning("retention.not_uploaded", step=step.number, count=step.not_uploaded)
            self._deleted += step.not_uploaded
            step.artifacts, step.not_uploaded = {}, 0
            if entry.kept:
                logger.warning("retention.incomplete", step=step.number, kept=entry.kept[:5])
        if failed is not None:
            raise failed
        self._has_room = not any(step.not_uploaded for step in complete)


def stored_name(run: Path) -> str:
    """Return the name of a run in the store: its id, and what tells it from another run with this id."""
    content = read_run(run)
    run_id = str(content.get("run_id", ""))
    origin = json.dumps([content.get("writer"), content.get("created_unix_ns")], sort_keys=True)
    mark = hashlib.sha256(origin.encode()).hexdigest()[:8]
    return f"{run_id if is_plain_name(run_id) else run.name}-{mark}"


def _modified(folder: Path) -> int | None:
    """Return when a folder was changed; None: it may have changed since without a trace."""
    try:
        changed = folder.lstat().st_mtime_ns
    except OSError:
        return None
    return changed if abs(real_time.time_ns() - changed) > FRESH_SECONDS * 1e9 else None
