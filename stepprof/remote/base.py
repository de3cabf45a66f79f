"""The contract between stepprof and one kind of engine, and the values that they exchange.

A driver translates four verbs into the calls of one library. `stepprof.remote.core.engine_target` decides whether a call is legal now, which
call is pending after a time-out, and what the manifest says. A plug-in is a class that derives from `EngineDriver`, and an `EngineKind` that makes it,
registered in the entry-point group ``stepprof.engines``. `stepprof.attach` refuses a driver that does not derive from `EngineDriver`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepprof.config.options.npu import NpuOptions
from stepprof.config.options.nsys import NsysOptions
from stepprof.errors import EngineError
from stepprof.redaction.messages import redacted
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

RANKS = ("rank", "spans")
"""Kinds that are sessions of other processes: they write their own manifests and files."""

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
    """Whether the recording process has ended, although another one now answers at its address."""

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
    """``same-host``, ``ping-pong`` or ``calls``."""
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
    """A result that arrives some time after a stop, such as a report that another program writes. A
    background task waits for it.
    """

    async def wait(self) -> Stopped:
        """Return the result. Raises EngineFailure, or an `ExportError` with the outcome of the window."""

    def hurry(self, until: float) -> None:
        """Limit the wait to this time (by `time.monotonic`): the run is about to end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of a stop: files below the step's folder, and what is missing."""

    artifacts: Sequence[Artifact] = ()
    capped_by: str | None = None
    """``engine`` if the engine's own limit ended the capture before the window did."""
    partial: str | None = None
    """What is missing and why; None: nothing."""
    joined: tuple[int, str] | None = None
    """The capture that contains this engine's part: the step, and the path below the step's folder without a suffix."""
    later: Later | None = None
    """The part that arrives later; the engine may be started again meanwhile."""
    statistics: Mapping[str, Any] | None = None
    """The engine's own counts from the start to the stop (`stepprof.remote.core.statistics`); None: unknown."""


class EngineDriver(ABC):
    """One engine. Its methods run on stepprof's own event loop, one at a time, and are never cancelled.

    A driver must set `kind`, `name` and `key`, and define `arm`, `start`, `stop` and `abort`. The other members have defaults; an
    attribute may be overridden by a class attribute, an instance attribute or a property.
    """

    kind: str
    """``vllm``, ``sglang``, ``rank``, ``spans``, or a name of the plug-in's own."""
    name: str
    """For logs and the manifest: a URL without its secrets, an actor's name."""
    key: str
    """Identifies the engine if a list or a callable returns it again: its URL, the actor's id, the object's id."""
    host: str | None = None
    """The host that it runs on, once that is known."""
    position: int = 0
    """Its number among the engines of its role. Set when it is attached."""

    # cached_property and not property: it can be overridden by an instance attribute as well

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of this process that the engine lives on; None: any. A window that blocks this loop does not start the engine."""
        return None

    @cached_property
    def inside(self) -> bool:
        """Whether the engine's worker is this process. Its work is in this process's own capture then, and the engine is never started."""
        return False

    @cached_property
    def runs_loop(self) -> bool:
        """Whether its calls may run the engine's event loop, so that the engine's own thread must wait meanwhile."""
        return False

    @cached_property
    def workers(self) -> int | None:
        """How many ranks the engine has; None: unknown."""
        return None

    @cached_property
    def rank(self) -> int | None:
        """Its number among the engines of its role; None: the next free one."""
        return None

    @cached_property
    def waiting(self) -> str | None:
        """Why a call has no answer yet, for the manifest of a start that timed out."""
        return None

    @cached_property
    def writes_to(self) -> Path | None:
        """The folder that the running capture is written to, for the manifest of a capture that failed."""
        return None

    @cached_property
    def listens(self) -> bool:
        """Whether `announce` is to be called."""
        return False

    async def expand(self) -> Sequence[EngineDriver]:
        """Return the drivers that currently represent it (for a router: those of its workers).
        Called before each window; raises nothing.
        """
        return [self]

    @abstractmethod
    async def arm(self, window: EngineWindow) -> None:
        """Do the slow work, and refuse what can be refused: unreachable, unconfigured, wrong options. Starts nothing. Raises EngineFailure."""

    @abstractmethod
    async def start(self, window: EngineWindow) -> None:
        """Start the capture. Returns when it runs. Raises EngineFailure."""

    @abstractmethod
    async def stop(self, window: EngineWindow) -> Stopped:
        """Stop the capture. Returns when its files are there and checked. Raises EngineFailure."""

    @abstractmethod
    async def abort(self) -> None:
        """Stop whatever runs, and drop what it recorded. Idempotent. Raises EngineFailure if the engine is dead."""

    async def clock(self) -> Clock | None:
        """Compare the engine's clock with that of this process; None: that cannot be done."""
        return None

    async def announce(self, number: int, windows: Sequence[tuple[int, str | None]]) -> None:
        """Note which windows are open now. Only called if `listens`, at each entry and exit of a window, recorded or not.

        Args:
            number: grows with each call; the announcement with the larger number is valid.
            windows: the step and the role of each, the outermost first.
        """

    def announce_now(self, number: int, windows: Sequence[tuple[int, str | None]]) -> bool:
        """Do what `announce` does, on the thread of the training loop, if that takes microseconds and raises nothing.

        Returns:
            Whether it was done; False: `announce` is called on stepprof's loop.
        """
        return False

    def recovered(self) -> Awaitable[None] | None:
        """Return an awaitable that ends once an unreachable engine answers again (it raises
        EngineFailure if the engine is dead); None: the next arm finds out.
        """
        return None

    async def enter(self, window: EngineWindow) -> None:
        """Note that a role's window begins inside the recorded one."""

    async def exit(self, window: EngineWindow) -> None:
        """Note that a role's window has ended inside the recorded one."""

    def retire(self) -> None:
        """Stop calling the engine. Anything unfinished is left to the next driver of the engine."""

    async def close(self, timeout: float, answer_seconds: float) -> None:
        """Stop what is still open, such as a capture whose stop failed. Called when the engine is detached and at the end of the run.

        Args:
            timeout: how long to wait for exports that run, in seconds.
            answer_seconds: how long to wait for an engine that does not answer.
        """


class EngineKind(Protocol):
    """A kind of engine, registered in the entry-point group ``stepprof.engines``: it recognises targets and connects to them."""

    def recognises(self, target: object) -> bool:
        """Return whether the target is of this kind, without importing the engine's library."""

    def connect(self, target: object, **options: object) -> EngineDriver:
        """Return a driver for the target, without contacting the engine. Raises ConfigError for unknown options."""
