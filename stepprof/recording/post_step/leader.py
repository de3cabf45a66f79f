"""What comes after a recording: uploads, a command, and the deleting of what is too old. None of it is ever the training thread's.

Each process uploads what it has recorded itself. The rest is for one process of the run, its keeper: the first that comes, and where it has ended or died, another one. It looks once a second which steps are whole,
runs the command for each and deletes what the budget no longer holds. Nothing here is loaded, and no thread started, unless it is configured.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stepprof.host.atomic_files import suffixed, write_atomically, write_exclusively
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive
from stepprof.log import logger
from stepprof.recording.post_step.completeness import Peers, Step, read_step_for, step_numbers
from stepprof.recording.post_step.hook import Completer
from stepprof.recording.post_step.retention import choose, prune
from stepprof.recording.post_step.upload.uploads import Uploader, missing
from stepprof.run.folders import make_folder
from stepprof.run.layout import AFTER, MANIFEST, PRUNED, step_folder
from stepprof.run.manifest_writer import Origin, describe_error
from stepprof.run.schema import UploadEntry

if TYPE_CHECKING:
    from stepprof.config.config import Config
    from stepprof.run.layout import RunDir
    from stepprof.run.manifest_writer import Fragment

__all__ = ["After"]

LOOK_SECONDS = 1.0
MANY_RANKS = 64
MANY_LOOK_SECONDS = 5.0
"""How often the keeper looks in a larger world, and how often all others look whether there is a keeper."""

LATE_SECONDS = 600.0
"""Ranks that have not got to the end of a step so long after all that is known of it was settled are not waited for."""

KEEPER = "keeper.json"


class After:
    """What comes after the recordings of one process.

    Args:
        config: what is asked for.
        run: where it is recorded.
        origin: who this process is.
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
        self.keeper: Keeper | None = None
        if config.on_complete is not None or _prunes(config):
            self.keeper = Keeper(config, run, origin, self._stop, self.uploader)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="stepprof-after", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self.uploader is not None:
            self._origin.observers.append(self.uploader.take)
            self.uploader.start()
        elif self._refused is not None:
            self._origin.observers.append(self._refuse)
        if self.keeper is not None:
            self._thread.start()

    @property
    def pending(self) -> int:
        """How many uploads have not ended."""
        return 0 if self.uploader is None else self.uploader.pending

    @property
    def last_error(self) -> str | None:
        """What went wrong last."""
        for each in (self.uploader, None if self.keeper is None else self.keeper.completer):
            if each is not None and each.last_error is not None:
                return each.last_error
        return self._refused

    def _refuse(self, fragment: Fragment) -> None:
        """What cannot be uploaded here says so in its manifest."""
        paths = fragment.artifact_paths()
        if not fragment.awaited and len(fragment.uploads) != len(paths):
            fragment.uploads = [UploadEntry(path=path, tries=0, error=self._refused) for path in paths]
            fragment.save()

    def _look(self) -> None:
        keeper = self.keeper
        assert keeper is not None  # noqa: S101 - narrows a type; no input decides it
        while not self._ended.wait(keeper.pause_seconds):
            self._try(lambda: keeper.look(final=False))
        self._try(lambda: keeper.look(final=True))

    @staticmethod
    def _try(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may be better
            logger.warning("post_step.failed", reason=describe_error(error))

    # -- the end

    def finish_uploads(self, timeout: float, files: list[Path]) -> None:
        """Everything is exported: what is not uploaded yet has so long, these files too."""
        if self.uploader is not None:
            self.uploader.close(timeout, files)

    def close(self, timeout: float) -> None:
        """This process has said that it has ended: look for the last time. A command that runs longer than this is killed."""
        if self.keeper is None:
            return
        self._ended.set()
        self._thread.join(timeout)
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)


class Keeper:
    """What one process does for all: the command, and the budget of what is kept.

    Args:
        config: what is asked for.
        run: where it is recorded.
        origin: who this process is.
        stop: ends a command.
        uploader: what is written here is uploaded too.
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
        self._keeps: Path | None = None
        self._looked = -MANY_LOOK_SECONDS
        self._whole: dict[int, Step] = {}
        self._settled_at: dict[int, float] = {}
        self._failed = False
        self._passed_over: set[Path] = set()
        self._header = {"schema_version": 1, "run_id": run.run_id, "writer": origin.writer}
        self.completer: Completer | None = None
        if config.on_complete is not None:
            self.completer = Completer(
                run.path,
                run.run_id,
                config.on_complete,
                config.on_complete_timeout_seconds,
                header=self._header,
                stop=stop,
                uploaded_to=None if uploader is None else uploader.url,
            )
            problem = self.completer.missing()
            if problem is not None:
                logger.warning("on_complete.will_fail", reason=problem)

    @property
    def pause_seconds(self) -> float:
        """How long until the next look."""
        many = (self._origin.world_size or 1) > MANY_RANKS
        return MANY_LOOK_SECONDS if many else LOOK_SECONDS

    def look(self, *, final: bool) -> None:
        """See which steps have become whole, and do what is due."""
        try:
            if self._is_ours(final=final):
                self._attend(final=final)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("post_step.failed", reason=f"the run directory cannot be used: {error}")
            self._failed = True

    def _attend(self, *, final: bool) -> None:
        open_steps = [number for number in step_numbers(self._path) if number not in self._whole]
        if open_steps or final:
            self._peers.look()  # a thousand files: only when the word of others matters
        new = [number for number in open_steps if self._is_whole(number)]
        config = self._config
        for number in new:
            if self.completer is not None and config.on_complete_when == "step":
                self._share(self.completer.for_step(self._whole[number]))
        # where no time was left for a command, the step waits for it as it is
        if new and _prunes(config) and not self._stop.is_set():
            self._prune()
        if final and self.completer is not None and config.on_complete_when == "run":
            recorded = [self._whole[number] for number in sorted(self._whole) if self._whole[number].windows]
            if not self._peers.others(self._origin.writer):
                self._share(self.completer.for_run(recorded))

    def _is_whole(self, number: int) -> bool:
        """Whether everybody is past the step, and then nothing of it is pending: in this order, since the last one writes its manifest before it goes on."""
        here = self._peers.here(number)
        step = read_step_for(self._path, number, self._peers, uploads=self._uploads)
        if step.pending or not step.windows:
            self._settled_at.pop(number, None)
            return False
        since = self._settled_at.setdefault(number, time.monotonic())
        if here and time.monotonic() - since < LATE_SECONDS:
            return False
        self._whole[number] = step
        return True

    def _prune(self) -> None:
        steps = []
        for number in sorted(self._whole):
            step = self._whole[number]
            step.artifacts = {path: size for path, size in step.artifacts.items() if self._exists(step, path)}
            steps.append(step)
        keep_bytes = self._config.keep_bytes
        for step, reason in choose(
            steps, self._config.keep_steps, keep_bytes if isinstance(keep_bytes, int) else None
        ):
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

    # -- who it is

    def _is_ours(self, *, final: bool) -> bool:
        """Whether this process is the keeper; it becomes it where there is none."""
        if self._keeps is None and not self._take_over(final=final):
            return False
        assert self._keeps is not None  # noqa: S101 - narrows a type; no input decides it
        if final:
            self._sign(self._keeps, over=True)
        elif time.monotonic() - self._looked >= MANY_LOOK_SECONDS:
            self._looked = time.monotonic()
            self._sign(self._keeps, over=False)
        return True

    def _take_over(self, *, final: bool) -> bool:
        now = time.monotonic()
        if not final and now - self._looked < MANY_LOOK_SECONDS:
            return False
        self._looked = now
        folder = self._path / AFTER
        number = 0
        while os.path.lexists(suffixed(folder / KEEPER, number + 1)):
            number += 1
        # a look changes nothing: as many processes look as the job has
        if number and not self._is_free(suffixed(folder / KEEPER, number)):
            return False
        make_folder(self._path, folder)
        path = suffixed(folder / KEEPER, number + 1)
        if not write_exclusively(path, self._content(over=final)):
            return False
        self._keeps = path
        return True

    def _is_free(self, path: Path) -> bool:
        """Whether the process that keeps has ended, or is gone; another user's file keeps nothing."""
        if is_foreign(path):
            self._pass_over(path)
            return True
        try:
            content = read_table(path)
            writer, over, signed = content["writer"], content["over"], content["unix_ns"]
            alive = is_alive(writer)
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return self._peers.silent(str(path), "damaged")
        if over or alive is False:
            return True
        return alive is None and self._peers.silent(str(path), signed)

    def _pass_over(self, path: Path) -> None:
        """Log it once: its writer may want to keep `keep_steps` from running."""
        if path not in self._passed_over:
            self._passed_over.add(path)
            logger.warning("leader.ignored", path=str(path), reason="it is not a file of this job's user")

    def _sign(self, path: Path, *, over: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            write_atomically(path, self._content(over=over))

    def _content(self, *, over: bool) -> bytes:
        return json.dumps({**self._header, "unix_ns": time.time_ns(), "over": over}).encode()


def _prunes(config: Config) -> bool:
    return config.keep_steps is not None or config.keep_bytes is not None
