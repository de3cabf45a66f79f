"""Write the fragments of a step's manifest: one per capture and step, written ahead as ``lost``.

Several sources change a fragment: the window's exit, the export job, an exception of the body. One
background thread at a time writes it. Its last version stays in the run directory whatever happens
to the process.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepprof.errors import StepprofError
from stepprof.host.clock import Anchor
from stepprof.host.process_identity import writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.log import logger
from stepprof.redaction.messages import MOST, quoted, redacted
from stepprof.run.conflicts import rival_in
from stepprof.run.entry_times import Timing
from stepprof.run.layout import Claim, RunDir
from stepprof.run.model import Artifact, Outcome, Window
from stepprof.run.schema import CaptureEntry, EngineEntry, Entry, WindowEntry

if TYPE_CHECKING:
    from pathlib import Path


_RAY_TASK = "ray.exceptions.RayTaskError"

LOST = "the process ended before the capture was stopped"
EXPORTING = "the process ended before the capture was exported"


class Origin:
    """The identity of the writer: the run, the rank and the process, determined once."""

    def __init__(self, run: RunDir, rank: int | str, world_size: int | None) -> None:
        self.run = run
        self.rank = rank
        self.world_size = world_size
        self.host = socket.gethostname()
        self.pid = os.getpid()
        self.writer = writer_identity()
        self.anchor = Anchor.take()
        self.job: str | None = None
        """The job of this process; None: unknown."""
        self.conflict_logged = False
        self.observers: list[Callable[[Fragment], object]] = []
        """Called with every fragment after a version of it was written."""

    def unix_ns(self, monotonic_ns: int) -> int:
        """Convert a ``perf_counter_ns`` reading to Unix time, by the wall clock when the session began."""
        return self.anchor.to_unix_ns(monotonic_ns)

    def metadata(self, window: Window) -> dict[str, object]:
        """Return the metadata that an artifact carries about itself."""
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
    """Return a window's entry in the manifest, with the times known so far."""
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
    """Return an exception as one line of a manifest: without colors, secrets masked, control
    characters visible, length bounded. For a Ray task's error, describe the exception that the task
    raised.
    """
    while isinstance(cause := getattr(error, "cause", None), BaseException) and _is_of_ray_task(error):
        error = cause
    if isinstance(error, StepprofError):
        message = redacted(str(error))
    else:
        message = quoted(error, MOST - len(type(error).__name__))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _is_of_ray_task(error: BaseException) -> bool:
    """Return whether it is Ray's report of another exception: its message is a colored traceback."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == _RAY_TASK for kind in type(error).__mro__)


def as_entries(artifacts: Iterable[Artifact]) -> list[dict[str, object]]:
    """Return artifacts in the form of a manifest."""
    return [{"path": a.path, "kind": a.kind, "bytes": a.bytes, "events": a.events} for a in artifacts]


class Fragment:
    """One target's part of one step's manifest.

    Args:
        origin: the identity of the writer.
        window: the window it is named after.
        post: runs the writing on another thread.
        engines: it is about the engines that this process drives.
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
        self.wall_ahead_ns, self.wall_error_ns = Anchor.take().ahead_of(origin.anchor, of_process=True) or (
            0,
            0,
        )
        """How far the wall clock is ahead of this process's times: it was set since the session began."""
        self.exporter: dict[str, object] | None = None
        """The child process that exports, which may outlive this process."""
        self.rival: dict[str, Any] | None = None
        """A living process of another job that has written as this rank."""
        _fragments.add(self)

    @property
    def step(self) -> int:
        """Return its step."""
        return self._window.step

    @property
    def awaited(self) -> bool:
        """Return whether the fragment is not final yet, because something is still recorded or exported."""
        return any(entry.pending for entry in self._captures())

    def _captures(self) -> list[CaptureEntry]:
        return [*self.windows, *self.engines]

    def write_ahead(self) -> Claim:
        """Claim the name, with everything known so far. Raises OSError."""
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
        """Check whether a living process of another job has taken the place. It is noted in the next version, and logged once."""
        origin = self.origin
        if claim.before is None or self._of_engines or not isinstance(origin.rank, int):
            return
        self.rival = rival_in(claim.before, origin.writer, origin.job)
        if self.rival is None:
            return
        self.save()
        if not origin.conflict_logged:
            origin.conflict_logged = True
            logger.warning(
                "run.shared",
                run_id=origin.run.run_id,
                rank=origin.rank,
                other_pid=self.rival.get("pid"),
                other_host=self.rival.get("host"),
                reason="another job records under this run id: give each job a STEPPROF_RUN_ID of its own",
            )

    def save(self) -> None:
        """Write it soon, on another thread, with all changes until then."""
        if not self._waiting:
            self._waiting = True
            try:
                self._post(self._write_if_waiting)
            except BaseException:  # an interrupt: the next call asks again
                self._waiting = False
                raise

    def _write_if_waiting(self) -> None:
        # Wait for a running write: the work that follows here would take the interpreter's lock
        # from it.
        with self._lock:
            waiting = self._waiting
        if waiting:  # otherwise it has been written meanwhile, completely
            self.write()

    def write(self) -> None:
        """Write it now. If that fails, log it, since the manifest cannot report it."""
        self._waiting = False
        try:
            with self._lock:
                if self.claim is None:
                    self._claim()
                else:
                    self.claim.write(self._content())
        except ours(OSError) as error:
            logger.warning(
                "manifest.not_written", step=self._window.step, role=self._window.role, reason=str(error)
            )
        for observe in tuple(self.origin.observers):
            observe(self)

    def write_in_child(self) -> None:
        """Write it in a forked child: without the lock and the log, which threads of the parent may have held at the fork."""
        with ignored(OSError):
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
            "anchor": origin.anchor.to_dict(),
            "job": origin.job,
            **({"rival": self.rival} if self.rival is not None else {}),
            **({"exporter": self.exporter} if self.exporter is not None else {}),
            "windows": [_shown(record) for record in self.windows],
            "engines": [self._by_own_clock(_shown(entry)) for entry in list(self.engines)],
            "clocks": [
                {
                    "host": origin.host,
                    "offset_ns": self.wall_ahead_ns,
                    "error_ns": origin.anchor.error_ns + self.wall_error_ns,
                    "method": "local",
                },
                *({**each, "offset_ns": each["offset_ns"] + self.wall_ahead_ns} for each in self.clocks),
            ],
        }

    def _by_own_clock(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Return an engine's entry with its wall-clock times converted to the clock of this process."""
        return {
            key: value - self.wall_ahead_ns if key.endswith("_unix_ns") and value is not None else value
            for key, value in entry.items()
        }


_QUOTING = ("error", "body_error", "name")
"""The fields that may quote a text from outside."""


def _shown(entry: Entry) -> dict[str, Any]:
    content = entry.to_dict()
    for key in _QUOTING:
        if content.get(key):
            content[key] = redacted(content[key])
    return content


_fragments: weakref.WeakSet[Fragment] = weakref.WeakSet()


def living_fragment(path: Path) -> Fragment | None:
    """Return the in-memory fragment of this process for a file: changes to the file must be made in it."""
    for fragment in tuple(_fragments):
        if fragment.claim is not None and fragment.claim.fragment == path:
            return fragment
    return None
