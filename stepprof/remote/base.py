"""The contract between stepprof and one kind of engine, and the values that go over it.

A driver is stateless: it translates four verbs into the calls of one library. Whether a call is legal now, what is owed after a
time-out, and what the manifest says is the business of `stepprof.remote.core.engine_target`. Write one in a file of its own and name it in the
entry-point group ``stepprof.engines``: an object with ``recognises(target) -> bool`` and ``connect(target, **options) -> EngineDriver``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from stepprof.config.options.npu import NpuOptions
from stepprof.config.options.nsys import NsysOptions
from stepprof.errors import EngineError
from stepprof.redaction import redacted
from stepprof.run.model import Artifact, Window

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from stepprof.config.options.engine import EngineOptions

__all__ = [
    "Clock",
    "EngineDriver",
    "EngineFailure",
    "EngineKind",
    "EngineWindow",
    "Health",
    "Later",
    "Stopped",
]

Health = Literal["ok", "busy", "unconfigured", "unreachable", "unknown", "dead"]
"""``busy``: another profiler runs; ``unknown``: a start was not answered."""


class EngineFailure(EngineError):
    """A call of a driver failed.

    Args:
        message: what happened, to what, and what to do about it, for the manifest and the log. Keys in it are masked.
        health: the engine's health after the failure.
        owes_stop: the capture may have begun although the call failed (a lost connection): a stop is sent.
    """

    lost = False
    """Whether the recording process has ended, although another one answers in its place."""

    def __init__(self, message: str, health: Health = "unknown", *, owes_stop: bool = False) -> None:
        super().__init__(redacted(message))
        self.health: Health = health
        self.owes_stop = owes_stop


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of another process: ``offset_ns`` is its time minus ours, ``error_ns`` the largest possible error of that."""

    host: str
    offset_ns: int
    error_ns: int
    method: str
    """``same-host``, ``ping-pong`` or ``http-date``."""
    boot_id: str | None = None
    """The boot of the machine with that clock, if known: two machines may have one host name."""


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """The window that a driver records, and the place of the engine's files.

    ``folder`` is the step's folder, absolute. ``stem`` (``rollout/replica-0``) is the engine's own folder inside it: it
    exists and is empty. A file of the engine's rank n belongs at ``{stem}/rank-{n}.trace.json.gz``
    (`stepprof.remote.artifacts.adopt` moves it there, checks it, and writes ``metadata`` into it).
    """

    window: Window
    replica: int
    folder: Path
    stem: str
    options: EngineOptions
    metadata: Mapping[str, object] = field(default_factory=dict)
    workers: frozenset[int] | None = None
    """The selected ranks of the engine; None: all."""
    trace_dir: Path | None = None
    """A folder that the engine's host and this host share; None: they share the run directory."""
    start_seconds: float = 5.0
    """How long the window waits for the answer to a start."""
    stop_seconds: float = 60.0
    """How long the window waits for the answer to a stop."""
    npu: NpuOptions = field(default_factory=NpuOptions)
    """The folder of the device leases of this host, and how long to wait for a lease."""
    nsys: NsysOptions = field(default_factory=NsysOptions)
    """The folder of the reports of nsys, if the engine records with it, and how long to wait for a report."""
    owner: Mapping[str, object] = field(default_factory=dict)
    """The process that opened the window (`stepprof.host.process_identity.writer_identity`); empty: this one."""

    def is_at(self, other: EngineWindow) -> bool:
        """Return whether it is the same window with the same folder. Its run may have been named only later."""
        return self is other or (self.folder, self.stem, self.window.step, self.window.occurrence) == (
            other.folder,
            other.stem,
            other.window.step,
            other.window.occurrence,
        )

    @property
    def output(self) -> Path:
        """Return the engine's own folder, absolute."""
        return self.folder / self.stem


class Later(Protocol):
    """A result that arrives some time after a stop, such as a report that another program writes. A background task waits for it."""

    async def wait(self) -> Stopped:
        """Return the result. Raises EngineFailure, or an `ExportError` with the outcome of the window."""

    def hurry(self, until: float) -> None:
        """Wait no longer than until then (by `time.monotonic`): the run is about to end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a stop: files below the step's folder, and what is missing."""

    artifacts: Sequence[Artifact] = ()
    capped_by: str | None = None
    """``engine`` if the engine's own limit ended the capture before the window did."""
    partial: str | None = None
    """What is missing and why; None: nothing."""
    joined: tuple[int, str] | None = None
    """The capture that contains its part: the step, and the path below the step's folder without a suffix."""
    later: Later | None = None
    """The part that is still to come; the engine may be started again meanwhile."""


class EngineDriver(Protocol):
    """One engine, spoken to. Its methods run on stepprof's own event loop and are never cancelled.

    A driver may have more, which is asked for by name: ``workers``, how many ranks of its own the engine has; ``rank``, which one it is;
    ``waiting``, why a call has no answer yet; ``runs_loop``, that its calls
    may run the engine's event loop, for which the engine's own thread has to wait; ``async expand()``, the drivers that stand for it now (a router's workers), asked before
    each window; ``async announce(step, role)``, to be told which step runs; ``async recovered()``, which returns once an engine that was
    unreachable answers again; ``async enter(window)`` and
    ``async exit(window)``, called for a role's window inside the one that it records; ``async close(timeout, answer_seconds)``, when it is detached: wait ``timeout``
    seconds at most for exports that run, and ``answer_seconds`` for an engine that does not answer.
    """

    kind: str
    """``vllm``, ``sglang``, ``rank``, ``spans`` or what a plug-in calls it."""
    name: str
    """For logs and the manifest: a URL without its secrets, an actor's name."""
    key: str
    """What makes it the same engine when a list is asked for again: the URL, the actor's id, the object's id."""
    host: str | None
    """Where it runs, once that is known."""
    loop: asyncio.AbstractEventLoop | None
    """The event loop that the engine lives on in this process; None: any will do. A synchronous block on it is refused."""
    inside: bool
    """The engine's worker is this very process: its work is in our own capture, and it is never started."""

    async def arm(self, window: EngineWindow) -> None:
        """Everything slow and everything that can be refused: reachable, configured, arguments, folder. Starts nothing."""

    async def start(self, window: EngineWindow) -> None:
        """Begin the capture. Returns when it runs."""

    async def stop(self, window: EngineWindow) -> Stopped:
        """End the capture. Returns when the files are there and looked at."""

    async def abort(self) -> None:
        """Leave whatever state the engine is in, throwing away what it has. Idempotent; stopped is no failure, dead is one."""

    async def clock(self) -> Clock | None:
        """Compare its clock with ours; None: that cannot be done."""


class EngineKind(Protocol):
    """A kind of engine, registered in the entry-point group ``stepprof.engines``: it recognises targets and connects to them."""

    def recognises(self, target: object) -> bool:
        """Return whether the target is of this kind, without importing the engine's library."""

    def connect(self, target: object, **options: object) -> EngineDriver:
        """Return a driver for the target, without contacting the engine. Raises ConfigError for unknown options."""
