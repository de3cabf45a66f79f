"""The data of a trace after reading: columns of times, names and tracks.

Every reader returns it; every writer and analysis takes it. Times are nanoseconds since the Unix
epoch in int64: a float of absolute microseconds is wrong by a quarter of one. They are on the
common clock of the timeline: that of the process that compared the others with its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from itertools import compress
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from stepprof.host.clock import Anchor

Times = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Args = bytes | None
"""The raw JSON object of an event's arguments, if it has any."""

PROFILER_END = "Record Window End"
"""torch's mark of the end of its profiler."""
TrackKind = Literal["thread", "stream", "async", "sample", "iterations", "counter"]
"""The kind of a track.

thread: a thread of the operating system. stream: a stream of a device. async: intervals that may
overlap (coroutines, requests); a writer assigns lanes to them. sample: one prompt or trajectory, by
``stepprof.bind(sample=…)``. iterations: the steps of an engine. counter: a value over time.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """The owner of a trace, as far as path, manifest and content state it."""

    kind: Literal["rank", "engine", "spans", "trace"]
    """rank: a process that records itself. engine: a worker of an engine. spans: a span file. trace: a file that stepprof did not record."""
    path: str
    """As it is shown: relative to the run if it is in one."""
    role: str | None = None
    rank: int | str | None = None
    """The global rank; for an engine's worker, its rank within the engine; for a Ray driver,
    ``driver``.
    """
    replica: int | None = None
    host: str | None = None
    pid: int | None = None
    occurrence: int = 1
    machine: str | None = None
    """The boot id of the machine; None: not known, and the host's name is used instead."""
    pid_namespace: str | None = None
    """The namespace of `pid`: each container of a machine has its own."""
    anchor: Anchor | None = field(default=None, compare=False)
    """Of a span file: relates its times to the kernel's clocks. For other sources, that of the fragment
    that lists them counts.
    """
    ranked: bool = field(default=False, compare=False)
    """For a trace that stepprof did not record: whether it states its rank in a job of several."""
    short: str = field(default="", compare=False)
    """For a trace that stepprof did not record: its path without the time in its name, if no other trace has the same."""

    @property
    def process(self) -> tuple[object, ...]:
        """Identifies the process in the run: machine, namespace of process ids, process id and
        rank.

        >>> Origin("rank", "x", rank=1, host="localhost", pid=7, machine="a").process
        ('a', None, 7, 1)
        """
        return self.machine or self.host, self.pid_namespace, self.pid, self.rank

    @property
    def label(self) -> str:
        """The name of the process, without its host.

        >>> Origin("engine", "x", role="rollout", rank=1, replica=0).label
        'rollout/0 worker 1'
        >>> Origin("rank", "x", role="actor", rank=3).label
        'actor rank 3'
        >>> Origin("spans", "x", rank="agent-loop-0").label
        'agent-loop-0'
        """
        if self.kind == "trace":
            return f"rank {self.rank}" if self.ranked else self.short or self.path
        if self.kind == "engine":
            number = "?" if self.replica is None else str(self.replica)
            return f"{self.role or 'engine'}/{number} worker {0 if self.rank is None else self.rank}"
        again = "" if self.occurrence == 1 else f" ({self.occurrence})"
        owner = self.rank if isinstance(self.rank, str) else f"rank {'?' if self.rank is None else self.rank}"
        if self.kind == "spans" or self.role is None:
            return f"{owner}{again}"
        return f"{self.role} {owner}{again}"


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of a source with the common clock: ``common = own - offset_ns``, with an error
    of ``error_ns`` (None: not known).
    """

    method: str
    """The method.

    ``reference`` (its clock is the common one), ``same-host``, ``kernel`` (another wall clock of one
    machine, compared by the kernel's clock), ``ping-pong``, ``calls`` (by the calls that an engine was started and stopped with), ``collectives`` (estimated from matched collectives), ``shared`` (of an unknown host; collectives end together with those of another source), ``assumed`` (given on the command line),
    ``unmeasured`` (never compared: placed by its own clock).
    """
    offset_ns: int = 0
    error_ns: int | None = 0
    island: str = ""
    """The clock of the times. Sources of one island can be compared, those of two islands cannot.

    Empty: the common clock; otherwise the machine that has no connection with it.
    """


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a process, with slices on it.

    ``key`` distinguishes the tracks of one source (the (pid, tid) of the file, a sample's id); ``order`` sorts within the process, small first.
    """

    kind: TrackKind
    name: str
    key: tuple[str, ...]
    order: int = 0


@dataclass(slots=True)
class _Rows:
    """Columns of equal length."""

    def where(self: R, kept: Flags) -> R:
        """Return the selected ones. If these are all, no column is copied."""
        if kept.all():
            return replace(self)
        return self._of_each(
            lambda column: [*compress(column, kept.tolist())] if isinstance(column, list) else column[kept]
        )

    def between(self: R, first: int, end: int) -> R:
        """Return those from index `first` to before `end`."""
        return self._of_each(lambda column: column[first:end])

    def _of_each(self: R, select: Callable[[Any], Any]) -> R:
        columns = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(
            self, **{name: select(column) for name, column in columns.items() if column is not None}
        )


R = TypeVar("R", bound=_Rows)


@dataclass(slots=True)
class Slices(_Rows):
    """Intervals, n of them, in any order. ``args`` are the raw JSON objects of the file, or None if
    they were not kept.
    """

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
    task: Indices | None = None
    """The coroutine that each one ran in, by a number; -1: in none. None: not known, as in a trace."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Instants(_Rows):
    """Points in time: marks, and other instants of a trace."""

    time: Times
    name: Indices
    category: Indices
    track: Indices
    args: list[Args] | None = None

    def __len__(self) -> int:
        return len(self.time)


@dataclass(slots=True)
class Counters(_Rows):
    """Values over time; ``track`` is of kind ``counter`` and has the name."""

    time: Times
    value: npt.NDArray[np.float64]
    track: Indices

    def __len__(self) -> int:
        return len(self.time)


@dataclass(slots=True)
class Flows(_Rows):
    """Arrows: each from the slice around (``start``, ``start_track``) to the slice around (``end``,
    ``end_track``).
    """

    start: Times
    start_track: Indices
    end: Times
    end_track: Indices
    category: Indices

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Source:
    """A trace that was read and placed on the common clock."""

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
    """Problems of the file, one sentence each; the valid events are here all the same."""
    whole: bool = True
    """Whether all events of the file were read. If it is damaged, truncated or larger than the
    memory limit, the absence of an event shows nothing: a file is sorted by thread, not by time.
    """
    sound: bool = True
    """Whether the text of the file needed no repair and its times are numbers, so that other programs can read it too."""
    anchor_ns: int | None = None
    """The Unix time that the times in the file are relative to, by its host's clock; None: not known,
    or the file is no trace.
    """
    metadata: dict[str, object] = field(default_factory=dict)
    """Facts that the file states at its top level, without the events: small values only."""

    @property
    def extent(self) -> tuple[int, int] | None:
        """The first and last time of its events; None without events."""
        slices, times = self.slices, self.point_times()
        begins = [int(column.min()) for column in (slices.start, *times) if len(column)]
        ends = [int(column.max()) for column in (slices.start + slices.duration, *times) if len(column)]
        return (min(begins), max(ends)) if begins else None

    def point_times(self) -> tuple[Times, Times]:
        """The times of its instants and of its counters, without torch's mark of the end of its profiler, which lies after the last event."""
        end = self.names.index(PROFILER_END) if PROFILER_END in self.names else -1
        return self.instants.time[self.instants.name != end], self.counters.time

    def parts(self, slices: Flags, instants: Flags, counters: Flags) -> Source:
        """Return the source with the chosen slices, instants and counters; flows follow the slices
        that they connect.
        """
        return replace(
            self,
            slices=self.slices.where(slices),
            instants=self.instants.where(instants),
            counters=self.counters.where(counters),
        )
