"""Publish the status of this process while it runs, for `stepprof status` and `stepprof trigger`.

    <run>/status/rank-0.json

The background thread replaces the file as a whole. It publishes a change of a state, an engine or
an error at once (at most once a second), a new step every few seconds, and otherwise a heartbeat.
If the folder cannot be written, one line is logged, and the job goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepprof.host import real_time
from stepprof.host.atomic_files import write_atomically, write_exclusively
from stepprof.host.memory import device_bytes, resident_bytes
from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.process_status import ProcessStatus

if TYPE_CHECKING:
    from stepprof.run.manifest_writer import Origin

BEAT_SECONDS = 5.0
"""Longest time between two versions of the file while the process lives."""

LEAST_SECONDS = 0.9
"""Shortest time: one per round of the background thread."""

STEP_SECONDS = 2.0
"""Longest delay of a new step's publication."""

MANY_RANKS = 64
"""In larger jobs a new step alone is published with the heartbeat, to spare the file system."""


class Publisher:
    """The status file of one process.

    Args:
        origin: the identity of the process; its rank, and the file's name, may become known later.
        look: returns the facts that are published at once when they change.
        look_on: returns the facts that change all the time, such as the step.
        shows_memory: publish the memory of the process, for the watch of `stepprof follow`.
    """

    def __init__(
        self,
        origin: Origin,
        look: Callable[[], dict[str, Any]],
        look_on: Callable[[], dict[str, Any]],
        *,
        shows_memory: bool = False,
    ) -> None:
        self._origin = origin
        self._look = look
        self._look_on = look_on
        self._shows_memory = shows_memory
        self._started_ns = real_time.time_ns()
        self._path: Path | None = None
        self._of: int | str | None = None
        self._published: object = None
        self._progress: object = None
        self._written = -BEAT_SECONDS
        self._failed = False

    def publish(self) -> None:
        """Do a round: publish what is new, or a heartbeat, no more often than necessary."""
        now = real_time.monotonic()
        age = now - self._written
        if age < LEAST_SECONDS or (self._failed and age < BEAT_SECONDS):
            return
        condition, progress = self._look(), self._look_on()
        waits_for_beat = progress == self._progress or (self._origin.world_size or 1) > MANY_RANKS
        if condition == self._published and age < (BEAT_SECONDS if waits_for_beat else STEP_SECONDS):
            return
        self._write(condition, progress, ended=False)

    def close(self, *, failed: bool) -> None:
        """Publish the final version: the session has ended, of a process that goes on or that failed."""
        self._write(self._look(), self._look_on(), ended=True, failed=failed)

    def _write(
        self, condition: dict[str, Any], progress: dict[str, Any], *, ended: bool, failed: bool = False
    ) -> None:
        origin = self._origin
        content = ProcessStatus(
            run_id=origin.run.run_id,
            rank=origin.rank,
            world_size=origin.world_size,
            host=origin.host,
            pid=origin.pid,
            writer=origin.writer,
            started_unix_ns=self._started_ns,
            published_unix_ns=real_time.time_ns(),
            beat_seconds=BEAT_SECONDS,
            ended=ended,
            failed=failed if ended else None,
            resident_bytes=resident_bytes() if self._shows_memory else None,
            device_bytes=device_bytes() if self._shows_memory else None,
            **condition,
            **progress,
        )
        self._written = real_time.monotonic()
        try:
            data = json.dumps({"schema_version": 1, **content.to_dict()}, default=str).encode()
            if self._path is None or self._of != origin.rank:
                self._leave()
                self._path, self._of = self._claim(data), origin.rank
            else:
                write_atomically(self._path, data)
        except ours(OSError) as error:
            if not self._failed:
                logger.warning("status.not_written", reason=str(error))
            self._failed = True
            self._path = None
            return
        self._failed = False
        self._published, self._progress = condition, progress

    def _claim(self, data: bytes) -> Path:
        """Create a file of our own: the rank's, unless another process that may be alive has it."""
        origin = self._origin
        origin.run.status_path(origin.rank).parent.mkdir(exist_ok=True)
        number = 1
        while True:
            path = origin.run.status_path(origin.rank, number)
            if write_exclusively(path, data):
                return path
            if _is_free(path, origin.writer):
                write_atomically(path, data)
                return path
            number += 1

    def _leave(self) -> None:
        """Remove the file with the earlier name: the rank has become known."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _is_free(path: Path, identity: object) -> bool:
    """Return whether the file belongs to the process with this identity, or to one that has ended."""
    try:
        content = read_table(path)
        writer = content["writer"]
        return writer == identity or bool(content["ended"]) or is_alive(writer) is False
    except ours(OSError, ValueError, LookupError, TypeError, AttributeError):
        return False  # damaged, or of another program: not ours to replace
