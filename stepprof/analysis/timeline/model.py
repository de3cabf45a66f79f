"""What a trace amounts to once it is read: columns of times, names and tracks. Every reader makes it, every writer and analysis takes it.

Times are nanoseconds since the Unix epoch on the common clock of the timeline (the clock of the process that compared the others with its own), in int64: a float
of absolute microseconds is wrong by a quarter of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = [
    "Alignment",
    "Args",
    "Counters",
    "Flows",
    "Instants",
    "Origin",
    "Piece",
    "Slices",
    "Source",
    "Track",
    "TrackKind",
]

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Kind = TypeVar("Kind", bound=np.generic)
Args = bytes | None
"""The raw JSON object of an event's arguments, if it has any."""

TrackKind = Literal["thread", "stream", "async", "sample", "iterations", "counter"]
"""thread: a thread of the operating system. stream: a stream of a device. async: intervals that may overlap (coroutines, requests); a writer gives them lanes.
sample: one prompt or trajectory, by ``stepprof.bind(sample=…)``. iterations: the steps of an engine. counter: a value over time."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose trace it is, as far as path, manifest and content say."""

    kind: Literal["rank", "engine", "spans", "trace"]
    """rank: a process that records itself. engine: a worker of an engine. spans: a span file. trace: a file that stepprof did not record."""
    path: str
    """As it is shown: relative to the run where it lies in one."""
    role: str | None = None
    rank: int | str | None = None
    """The global rank; of an engine's worker its rank within the engine; a Ray driver is ``driver``."""
    replica: int | None = None
    host: str | None = None
    pid: int | None = None
    occurrence: int = 1
    machine: str | None = None
    """The boot id of the machine; None: not known, and the host's name stands for it."""
    pid_namespace: str | None = None
    """Where `pid` counts: containers of one machine have one each."""

    @property
    def process(self) -> tuple[object, ...]:
        """What tells the process from all others of the run: machine, namespace of process ids, process id and rank.

        >>> Origin("rank", "x", rank=1, host="localhost", pid=7, machine="a").process
        ('a', None, 7, 1)
        """
        return self.machine or self.host, self.pid_namespace, self.pid, self.rank

    @property
    def label(self) -> str:
        """What the process is called, without its host.

        >>> Origin("engine", "x", role="rollout", rank=1, replica=0).label
        'rollout/0 worker 1'
        >>> Origin("rank", "x", role="actor", rank=3).label
        'actor rank 3'
        >>> Origin("spans", "x", rank="agent-loop-0").label
        'agent-loop-0'
        """
        if self.kind == "trace":
            return self.path
        if self.kind == "engine":
            number = "?" if self.replica is None else str(self.replica)
            return f"{self.role or 'engine'}/{number} worker {0 if self.rank is None else self.rank}"
        again = "" if self.occurrence == 1 else f" ({self.occurrence})"
        who = self.rank if isinstance(self.rank, str) else f"rank {'?' if self.rank is None else self.rank}"
        if self.kind == "spans" or self.role is None:
            return f"{who}{again}"
        return f"{self.role} {who}{again}"


@dataclass(frozen=True, slots=True)
class Alignment:
    """How a source came onto the common clock: ``common = own - offset_ns``, right within ``error_ns`` (None: not known)."""

    method: str
    """``reference`` (its clock is the common one), ``same-host``, ``ping-pong``, ``http-date``, ``collectives`` (estimated from matched collectives), ``assumed`` (given on the command line),
    ``unmeasured`` (another host, never compared: placed by its own wall clock)."""
    offset_ns: int = 0
    error_ns: int | None = 0
    island: str = ""
    """The clock that the times are on: sources of one island can be compared, those of two cannot. Empty: the common clock; else the machine that nothing connects with it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Where one source lies in a timeline in JSON that `stepprof merge` wrote: a member of gzip, and a process of its own."""

    pid: int
    from_end: int
    """Bytes from its begin to the end of the file."""
    bytes: int
    offset_ns: int = 0
    """How far its own clock is ahead of the one that the timeline is on."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a process: what its slices lie on.

    ``key`` tells tracks of one source apart (the (pid, tid) of the file, a sample's id); ``order`` sorts within the process, small first.
    """

    kind: TrackKind
    name: str
    key: tuple[str, ...]
    order: int = 0


@dataclass(slots=True)
class Slices:
    """Intervals, n of them, in no promised order. ``args`` are the raw JSON objects of the file, or None where they were not kept."""

    start: Times
    duration: Times
    """At least 0."""
    name: Indices
    """Into ``Source.names``."""
    category: Indices
    """Into ``Source.categories``."""
    track: Indices
    """Into ``Source.tracks``."""
    args: list[Args] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def where(self, kept: Flags) -> Slices:
        """Return those that are kept."""
        times = _kept(self.start, kept), _kept(self.duration, kept)
        return Slices(
            *times,
            _kept(self.name, kept),
            _kept(self.category, kept),
            _kept(self.track, kept),
            _kept_args(self.args, kept),
        )


@dataclass(slots=True)
class Instants:
    """Moments: marks, and what else a trace says of a point in time."""

    time: Times
    name: Indices
    category: Indices
    track: Indices
    args: list[Args] | None = None

    def __len__(self) -> int:
        return len(self.time)

    def where(self, kept: Flags) -> Instants:
        """Return those that are kept."""
        return Instants(
            _kept(self.time, kept),
            _kept(self.name, kept),
            _kept(self.category, kept),
            _kept(self.track, kept),
            _kept_args(self.args, kept),
        )


@dataclass(slots=True)
class Counters:
    """Values over time; ``track`` is of kind ``counter`` and carries the name."""

    time: Times
    value: npt.NDArray[np.float64]
    track: Indices

    def __len__(self) -> int:
        return len(self.time)

    def where(self, kept: Flags) -> Counters:
        """Return those that are kept."""
        return Counters(_kept(self.time, kept), _kept(self.value, kept), _kept(self.track, kept))


@dataclass(slots=True)
class Flows:
    """Arrows: each from the slice that encloses (``start``, ``start_track``) to the one that encloses (``end``, ``end_track``)."""

    start: Times
    start_track: Indices
    end: Times
    end_track: Indices
    category: Indices

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Source:
    """One trace, read and placed."""

    origin: Origin
    alignment: Alignment
    names: list[str]
    categories: list[str]
    tracks: list[Track]
    slices: Slices
    instants: Instants
    counters: Counters
    flows: Flows
    findings: list[str] = field(default_factory=list)
    """What is wrong with it, one sentence each; what is right is here all the same."""
    whole: bool = True
    """Whether all events of the file were read. Where it is damaged, breaks off or holds more than the memory allows, what is absent shows nothing: a trace lies thread by thread in its file, not by time."""
    metadata: dict[str, object] = field(default_factory=dict)
    """What the file states about itself at its top level, without the events: small values only."""

    @property
    def extent(self) -> tuple[int, int] | None:
        """The first and the last moment of its events; None: it has none."""
        slices, times = self.slices, (self.instants.time, self.counters.time)
        begins = [int(column.min()) for column in (slices.start, *times) if len(column)]
        ends = [int(column.max()) for column in (slices.start + slices.duration, *times) if len(column)]
        return (min(begins), max(ends)) if begins else None

    def parts(self, slices: Flags, instants: Flags, counters: Flags) -> Source:
        """Return the source with the chosen slices, instants and counters; flows go with the slices that they join."""
        return replace(
            self,
            slices=self.slices.where(slices),
            instants=self.instants.where(instants),
            counters=self.counters.where(counters),
        )


def _kept(column: npt.NDArray[Kind], kept: Flags) -> npt.NDArray[Kind]:
    """A column that stays whole is not copied."""
    return column if kept.all() else column[kept]


def _kept_args(args: list[Args] | None, kept: Flags) -> list[Args] | None:
    return None if args is None else [args[at] for at in np.flatnonzero(kept).tolist()]
