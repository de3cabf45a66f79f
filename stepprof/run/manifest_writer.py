"""What a target writes into a step's manifest: one fragment per capture and step, written ahead as ``lost``.

A fragment is changed by its sources (the window's exit, the export job, an exception of the body) and written by
one background thread at a time; its last version stands in the run directory whatever happens to the process afterwards.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepprof.errors import StepprofError
from stepprof.host.clock import Anchor
from stepprof.log import logger
from stepprof.redaction import MOST, quoted, redacted
from stepprof.run.conflicts import rival_in
from stepprof.run.entry_times import Timing
from stepprof.run.layout import Claim, RunDir, writer_identity
from stepprof.run.model import Artifact, Outcome, Window
from stepprof.run.schema import CaptureEntry, EngineEntry, Entry, UploadEntry, WindowEntry

if TYPE_CHECKING:
    from pathlib import Path


__all__ = [
    "EXPORTING",
    "LOST",
    "Fragment",
    "Origin",
    "as_entries",
    "describe_error",
    "living_fragment",
    "window_entry",
]

_RAY_TASK = "ray.exceptions.RayTaskError"

LOST = "the process ended before the capture was stopped"
EXPORTING = "the process ended before the capture was exported"


class Origin:
    """Who writes: the run, the rank and the process. Asked for the identity once."""

    def __init__(self, run: RunDir, rank: int | str, world_size: int | None) -> None:
        self.run = run
        self.rank = rank
        self.world_size = world_size
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.writer = writer_identity()
        self.anchor = Anchor.take()
        self.job: str | None = None
        """Of which job it is; None: not known."""
        self.told_of_rival = False
        self.observers: list[Callable[[Fragment], object]] = []
        """Each gets every fragment of which a version was written."""

    def unix_ns(self, monotonic_ns: int) -> int:
        """A ``perf_counter_ns`` reading as wall-clock time."""
        return self.anchor.to_unix_ns(monotonic_ns)

    def metadata(self, window: Window) -> dict[str, object]:
        """What an artifact states about itself."""
        return {
            "run_id": self.run.run_id,
            "step": window.step,
            "role": window.role,
            "occurrence": window.occurrence,
            "version": window.version,
            "rank": self.rank,
            "world_size": self.world_size,
            "host": self.host,
            "pid": self.pid,
            "anchor": self.anchor.to_dict(),
        }


def window_entry(
    origin: Origin, window: Window, timing: Timing, *, status: Outcome, **fields: Any
) -> WindowEntry:
    """Return a window's entry in the manifest, with the times as they are known by now."""
    values: dict[str, Any] = {
        "rank": origin.rank,
        "world_size": origin.world_size,
        "host": origin.host,
        "pid": origin.pid,
        "thread": threading.get_native_id(),
        "pending": status == "lost",
        "stall_seconds": 0.0,
        **timing.keys(origin.anchor),
        **fields,
    }
    return WindowEntry(
        role=window.role, occurrence=window.occurrence, visit=window.visit, status=status, **values
    )


def describe_error(error: BaseException) -> str:
    """Return an exception as one line of a manifest: without colors, secrets masked, control characters visible, length bounded.

    Of a Ray task's error it is the exception that the task raised.
    """
    while isinstance(cause := getattr(error, "cause", None), BaseException) and _is_of_ray_task(error):
        error = cause
    if isinstance(error, StepprofError):
        message = redacted(str(error))
    else:
        message = quoted(error, MOST - len(type(error).__name__))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _is_of_ray_task(error: BaseException) -> bool:
    """Whether it is Ray's account of another exception: its message is a colored traceback."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == _RAY_TASK for kind in type(error).__mro__)


def as_entries(artifacts: Iterable[Artifact]) -> list[dict[str, object]]:
    """Artifacts as they stand in a manifest."""
    return [{"path": a.path, "kind": a.kind, "bytes": a.bytes, "events": a.events} for a in artifacts]


class Fragment:
    """One target's part of one step's manifest.

    Args:
        origin: who writes.
        window: the window it is named after.
        post: has the writing done on another thread.
        engines: it tells of engines that this process drives.
    """

    def __init__(
        self,
        origin: Origin,
        window: Window,
        post: Callable[[Callable[[], object]], None],
        *,
        engines: bool = False,
    ) -> None:
        self.origin = origin
        self._window = window
        self._post = post
        self._of_engines = engines
        self._lock = threading.Lock()
        self._waiting = False
        self.claim: Claim | None = None
        self.windows: list[WindowEntry] = []
        self.engines: list[EngineEntry] = []
        self.clocks: list[dict[str, Any]] = []
        self.uploads: list[UploadEntry] = []
        self.rival: dict[str, Any] | None = None
        """A living process of another job that has written as this rank."""
        _fragments.add(self)

    @property
    def step(self) -> int:
        """The step that it is of."""
        return self._window.step

    @property
    def awaited(self) -> bool:
        """Whether it is not final yet: something is recorded or exported."""
        return any(entry.pending for entry in self._captures())

    def word(self) -> str:
        """What it says of windows and engines: to see whether a later version says something else."""
        return repr((self.windows, self.engines, self.clocks))

    def artifact_paths(self) -> list[str]:
        """The artifacts that it names, by their paths below the step's folder."""
        return [each["path"] for entry in self._captures() for each in entry.artifacts]

    def _captures(self) -> list[CaptureEntry]:
        return [*self.windows, *self.engines]

    def write_ahead(self) -> Claim:
        """Claim the name, with what is known so far. Raises OSError."""
        with self._lock:
            return self._claim()

    def _claim(self) -> Claim:
        if self.claim is None:
            self.claim = self.origin.run.claim(
                self._window.step,
                self._window.role,
                self.origin.rank,
                self._content(),
                engines=self._of_engines,
            )
            self._look_for_rival(self.claim)
        return self.claim

    def _look_for_rival(self, claim: Claim) -> None:
        """See whether the place was taken by a process of another job that lives. It stands in the next version, and is logged once."""
        origin = self.origin
        if claim.before is None or self._of_engines or not isinstance(origin.rank, int):
            return
        self.rival = rival_in(claim.before, origin.writer, origin.job)
        if self.rival is None:
            return
        self.save()
        if not origin.told_of_rival:
            origin.told_of_rival = True
            logger.warning(
                "run.shared",
                run_id=origin.run.run_id,
                rank=origin.rank,
                other_pid=self.rival.get("pid"),
                other_host=self.rival.get("host"),
                reason="another job records under this run id: give each job a STEPPROF_RUN_ID of its own",
            )

    def save(self) -> None:
        """Write it soon, on another thread; what changes until then is written with it."""
        if not self._waiting:
            self._waiting = True
            try:
                self._post(self._write_if_waiting)
            except BaseException:  # an interrupt: the next one asks again
                self._waiting = False
                raise

    def _write_if_waiting(self) -> None:
        # A write under way is waited for: what comes next here would take the interpreter from it.
        with self._lock:
            waiting = self._waiting
        if waiting:  # else it has been written meanwhile, with all that was to be written
            self.write()

    def write(self) -> None:
        """Write it now; where that fails the log says so, since the manifest cannot."""
        self._waiting = False
        try:
            with self._lock:
                if self.claim is None:
                    self._claim()
                else:
                    self.claim.write(self._content())
        except OSError as error:
            logger.warning(
                "manifest.not_written", step=self._window.step, role=self._window.role, reason=str(error)
            )
        for observe in tuple(self.origin.observers):
            observe(self)

    def write_in_child(self) -> None:
        """Write it in a forked child: without the lock and the log, which threads of the parent may have held at the fork."""
        with contextlib.suppress(OSError):
            if self.claim is not None:
                self.claim.write(self._content())

    def _content(self) -> dict[str, object]:
        origin = self.origin
        return {
            "schema_version": 1,
            "run_id": origin.run.run_id,
            "step": self._window.step,
            "version": self._window.version,
            "writer": origin.writer,
            "job": origin.job,
            **({"rival": self.rival} if self.rival is not None else {}),
            "windows": [_shown(record) for record in self.windows],
            "engines": [_shown(entry) for entry in list(self.engines)],
            **({"uploads": [_shown(entry) for entry in self.uploads]} if self.uploads else {}),
            "clocks": [
                {"host": origin.host, "offset_ns": 0, "error_ns": origin.anchor.error_ns, "method": "local"},
                *self.clocks,
            ],
        }


_QUOTING = ("error", "body_error", "name", "url")
"""What may quote a text from outside."""


def _shown(entry: Entry) -> dict[str, Any]:
    content = entry.to_dict()
    for key in _QUOTING:
        if content.get(key):
            content[key] = redacted(content[key])
    return content


_fragments: weakref.WeakSet[Fragment] = weakref.WeakSet()


def living_fragment(path: Path) -> Fragment | None:
    """Return the fragment of this process that is written to a file: what is to change in the file has to change in it."""
    for fragment in tuple(_fragments):
        if fragment.claim is not None and fragment.claim.fragment == path:
            return fragment
    return None
