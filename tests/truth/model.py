"""One step as it truly was: machines, processes, and the times of their activities, in nanoseconds
of one true clock.

Nothing here depends on how stepprof reads a run. `simulate` makes a `Truth`, `writing` writes the
recording of it, and `figures` computes the figures from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MS = 1_000_000
SECOND = 1_000_000_000
UNIT = 100_000
"""All times of the simulation are multiples of this unit, which kineto writes exactly."""
T0 = 1_795_000_000 * SECOND
STEP = 2

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")

Stretch = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """The drawn properties of a step; everything else follows from the seed."""

    seed: int = 0
    ranks: int = 2
    machines: int = 1
    device: str = "cpu"
    devices: int = 1
    same_name: bool = False
    compared: str = "all"
    """Which machines were compared: ``all``, ``some`` or ``none``."""
    clock_error: bool = False
    phases: tuple[str, ...] = ("actor",)
    """The roles of the ranks, one window each; a role that is named twice has two occurrences."""
    layout: str = "world"
    """``world``: all ranks are in all phases. ``disjoint``: each role has its own ranks."""
    groups: str = "world"
    """The process groups that communicate: ``world``, ``halves`` or ``both``."""
    kinds: tuple[str, ...] = ("all_reduce",)
    rounds: int = 2
    local: str = "ops"
    """The activity of ranks between collectives: ``ops``, ``python``, ``sleep`` or ``mixed``."""
    fates: tuple[tuple[int, str], ...] = ()
    """The fates of some ranks' captures: ``capped``, ``lost``, ``truncated``, ``killed``,
    ``unselected`` or ``absent``.
    """
    profiler: str = "none"
    """How long arm, start and stop of the recording take: ``none``, ``equal`` or ``differing``."""
    spans: bool = True
    traces: bool = True
    """False: the null backend, which writes no traces."""
    driver: str = "none"
    """``none``, ``waits`` (in spans) or ``manifest`` (a window that only the manifest has)."""
    engines: tuple[tuple[int, int], ...] = ()
    """(data parallel, tensor parallel) of each engine."""
    again: str = "no"
    """``epoch``: the loop counts from 0 again, so the step number occurs twice. ``restart``: the
    job was started again with its run id.
    """
    late: bool = False
    """Engines stop late and record forward steps that belong to no window."""
    nested: bool = False
    """A region contains a region of the same name."""
    jitter: bool = False
    """Threads leave collectives up to half a millisecond apart."""
    overlap: bool = False
    """Collectives of a device run concurrently with computation; only if the recording delays no rank."""
    outer: bool = False
    """Each rank has a window around the whole step, and the windows of its roles join its capture.
    This needs spans, and all selected ranks must be recorded to the end.
    """


@dataclass(frozen=True)
class Machine:
    """One host, whose clock is ahead of the true one by `offset`."""

    host: str
    boot: str
    offset: int

    def own(self, at: int) -> int:
        """Return what the machine's clock shows at a true time."""
        return at + self.offset


@dataclass(frozen=True)
class Group:
    """A process group, as each member knows it."""

    name: str
    ranks: tuple[int, ...]


@dataclass
class Call:
    """A collective, or a transfer between two ranks: when each member arrived and left, and how
    long it truly waited.
    """

    kind: str
    group: Group
    number: int
    arrive: dict[int | str, int]
    leave: dict[int | str, int] = field(default_factory=dict)
    waited: dict[int | str, int] = field(default_factory=dict)
    """The time from a member's arrival until that of the member it needed."""
    needed: dict[int | str, frozenset[int]] = field(default_factory=dict)
    """The members whose late arrival caused the rest of the wait, not counting the recording's own
    time. It is empty if there is no such wait.
    """
    profiler: dict[int | str, int] = field(default_factory=dict)
    """The part of the wait that exists only because of the recording."""
    blur: int = 0
    """How far durations may differ from waits because members left apart: on several machines, and
    in calls with a root.
    """

    @property
    def synchronises(self) -> bool:
        """Return whether no member leaves before all have arrived."""
        return self.kind in SYNCHRONISING

    @property
    def pairwise(self) -> bool:
        """Return whether the call is a transfer between two ranks, which is never matched."""
        return self.kind in ("send", "recv")


@dataclass
class Region:
    """A named part of a window."""

    name: str
    role: str | None
    start: int
    end: int


@dataclass
class Note:
    """The annotation that torch writes on a stream for a region: from its first kernel there to its last."""

    name: str
    start: int
    end: int
    stream: tuple[int, int]


@dataclass
class Window:
    """A window of a process, and its capture."""

    role: str | None
    occurrence: int
    start: int
    end: int
    arm: int = 0
    begin: int = 0
    """How long the start of the capture delayed the process before `start`."""
    stall: int = 0
    status: str | None = "complete"
    """The status in the manifest. None: the manifest does not have the window."""
    captured: int | None = None
    """The time until which the capture covers the window. None: nothing is captured."""
    capped_by: str | None = None
    truncated: bool = False
    joined: bool = False
    """Whether the window joined the capture of the window around it."""
    cpu: int | None = None
    """CPU time of the window's thread."""
    raised: bool = False
    """Whether an exception ended it."""

    @property
    def covered(self) -> list[Stretch]:
        """Return the captured time."""
        return [] if self.captured is None else [(self.start, self.captured)]


@dataclass
class Work:
    """Work of a device or a thread."""

    name: str
    start: int
    end: int
    kind: str = "op"
    """``op``, ``kernel``, ``copy``, or ``dispatch``: the operator that starts a collective."""
    thread: int = 0
    """0: the main thread."""
    device: int = 0
    launched: int | None = None
    """When its launch began, if the trace connects the two."""


@dataclass
class Process:
    """A process that records itself: a rank or the driver."""

    rank: int | str
    machine: Machine
    pid: int
    pid_namespace: str = "pid:[1]"
    fate: str = "complete"
    devices: int = 0
    windows: list[Window] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    python: list[Stretch] = field(default_factory=list)
    """Times of CPU use without an operator."""
    calls: list[Call] = field(default_factory=list)
    killed: int | None = None
    """When the process was killed. Its spans contain only what had ended by then."""

    def windows_in_manifest(self, truth: Truth) -> list[Window]:
        """Return the process's windows in the manifest."""
        if not self.recorded or (self.rank == "driver" and truth.shape.driver != "manifest"):
            return []
        return [window for window in self.windows if window.status is not None]

    def ended(self, at: int) -> bool:
        """Return whether the process had been killed by this time."""
        return self.killed is not None and at > self.killed

    @property
    def peak_bytes(self) -> int:
        """Return the peak memory of the process's allocator, at the begin of each window."""
        return (self.pid % 61 + 4) << 28

    @property
    def has_spans(self) -> bool:
        """Return whether the process's fate leaves a span file."""
        return self.fate != "absent"

    @property
    def recorded(self) -> bool:
        """Return whether anything is known of the process."""
        return self.fate != "absent"


@dataclass
class Scheduler:
    """A scheduler of an engine. Each of its workers runs its forward steps of (start, end, batch size)."""

    group: int
    workers: int
    steps: list[tuple[int, int, int]]
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    """Forward steps that were recorded after the end of the window."""
    again: dict[int, int] = field(default_factory=dict)
    """By the begin of a forward step: how many tokens it computed again."""


@dataclass
class Engine:
    """One replica, which a process controls."""

    replica: int
    machine: Machine
    role: str
    start: int
    end: int
    begin: int
    stop: int
    schedulers: list[Scheduler]
    capped_by: str | None = None
    preemptions: int = 0


@dataclass
class Truth:
    """One step."""

    shape: Shape
    machines: list[Machine]
    world: int = 0
    processes: list[Process] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    compared: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(machine, other machine, measured offset of the other clock, error) of each comparison."""
    visit: int = 1
    """How often the processes have reached this step number."""

    @property
    def spans(self) -> bool:
        """Return whether processes write span files. With ``manifest``, only the manifest has the
        driver's window.
        """
        return self.shape.spans and self.shape.driver != "manifest"

    @property
    def first(self) -> Process:
        """Return the process that compares clocks: the first one that writes into the manifest."""
        drivers = [process for process in self.processes if process.rank == "driver"]
        ordered = [*drivers, *(process for process in self.processes if process.rank != "driver")]
        windows_in_manifest = [process for process in ordered if process.windows_in_manifest(self)]
        return ordered[0] if self.engines or not windows_in_manifest else windows_in_manifest[0]

    @property
    def comparisons(self) -> list[tuple[int, int, int, int]]:
        """Return the comparisons that are in the manifest."""
        return self.compared if self.first.machine is self.machines[0] else []

    def process(self, rank: int | str) -> Process:
        """Return the process of a rank."""
        return next(process for process in self.processes if process.rank == rank)
