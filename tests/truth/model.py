"""One step as it truly was: machines, processes, and what each process did when, in nanoseconds of one true clock.

Nothing here knows how stepprof reads a run. `simulate` makes a `Truth`, `writing` writes what a recording
would leave of it, and `expected` computes the figures from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MS = 1_000_000
SECOND = 1_000_000_000
UNIT = 100_000
"""All times of the simulation are multiples of this: kineto writes them exactly."""
T0 = 1_795_000_000 * SECOND
STEP = 2

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")

Stretch = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """What is drawn of a step: everything else follows from the seed."""

    seed: int = 0
    ranks: int = 2
    machines: int = 1
    device: str = "cpu"
    devices: int = 1
    same_name: bool = False
    compared: str = "all"
    """``all``, ``some`` or ``none`` of the machines."""
    clock_error: bool = False
    phases: tuple[str, ...] = ("actor",)
    """The roles that ranks go through, one window each; one named twice has two occurrences."""
    layout: str = "world"
    """``world``: all ranks are in all phases. ``disjoint``: each role has ranks of its own."""
    groups: str = "world"
    """``world``, ``halves`` or ``both``: the process groups that communicate."""
    kinds: tuple[str, ...] = ("all_reduce",)
    rounds: int = 2
    local: str = "ops"
    """``ops``, ``python``, ``sleep`` or ``mixed``: what ranks do between collectives."""
    fates: tuple[tuple[int, str], ...] = ()
    """What became of the captures of some ranks: ``capped``, ``lost``, ``truncated``, ``killed``, ``unselected`` or ``absent``."""
    profiler: str = "none"
    """``none``, ``equal`` or ``differing``: how long the recording's own arm, start and stop take."""
    spans: bool = True
    driver: str = "none"
    """``none``, ``waits`` (in spans) or ``manifest`` (a window that only the manifest knows)."""
    engines: tuple[tuple[int, int], ...] = ()
    """(data parallel, tensor parallel) of each."""
    again: str = "no"
    """``epoch``: the loop counts from 0 again, so that the step's number comes twice. ``restart``: the job was started again under its run id."""
    late: bool = False
    """Engines carry out their stops late, and record forward steps that are of no window."""
    nested: bool = False
    """A region lies inside itself."""
    jitter: bool = False
    """Threads leave collectives up to half a millisecond apart."""
    overlap: bool = False
    """Collectives of a device run concurrently with computation; only if the recording delays no rank."""
    outer: bool = False
    """Each rank has a window around the whole step, whose capture the windows of its roles join; only where all ranks that are selected are recorded to the end, with spans."""


@dataclass(frozen=True)
class Machine:
    """One host: its clock is ahead of the true one by `offset`."""

    host: str
    boot: str
    offset: int

    def own(self, at: int) -> int:
        """What its clock shows at a true time."""
        return at + self.offset


@dataclass(frozen=True)
class Group:
    """A process group, as each of its members knows it."""

    name: str
    ranks: tuple[int, ...]


@dataclass
class Call:
    """One collective (or a transfer of two ranks): when each member arrived and left, and what it truly waited."""

    kind: str
    group: Group
    number: int
    arrive: dict[int | str, int]
    leave: dict[int | str, int] = field(default_factory=dict)
    waited: dict[int | str, int] = field(default_factory=dict)
    """From its arrival until that of the member it needed."""
    needed: dict[int | str, frozenset[int]] = field(default_factory=dict)
    """The members whose late arrival the rest of the wait was for, without the recording's own time, as far as they arrived later than it; empty where there is none."""
    profiler: dict[int | str, int] = field(default_factory=dict)
    """How much of the wait there would not be without the recording's own time."""
    blur: int = 0
    """By how much durations do not say what was waited, where members left apart: on several machines, and in calls with a root."""

    @property
    def synchronises(self) -> bool:
        """Whether no member leaves before all have arrived."""
        return self.kind in SYNCHRONISING

    @property
    def pairwise(self) -> bool:
        """Whether it is a transfer between two ranks, which nothing matches."""
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
    """What torch writes on a stream for a region: from the first of its kernels there to the last."""

    name: str
    start: int
    end: int
    stream: tuple[int, int]


@dataclass
class Window:
    """One window of a process, and its capture."""

    role: str | None
    occurrence: int
    start: int
    end: int
    arm: int = 0
    begin: int = 0
    """How long the start of the capture held the process up before `start`."""
    stall: int = 0
    status: str | None = "complete"
    """As the manifest has it; None: the manifest does not have the window."""
    captured: int | None = None
    """Until when the capture covers it; None: nothing is captured."""
    capped_by: str | None = None
    truncated: bool = False
    joined: bool = False
    """Its capture is that of the window around it."""
    cpu: int | None = None
    """CPU time of its thread."""

    @property
    def covered(self) -> list[Stretch]:
        """Where it was captured."""
        return [] if self.captured is None else [(self.start, self.captured)]


@dataclass
class Work:
    """What a device or a thread did."""

    name: str
    start: int
    end: int
    kind: str = "op"
    """``op``, ``kernel``, ``copy``, or ``dispatch``: the operator that starts a collective."""
    thread: int = 0
    """0: the main thread."""
    device: int = 0


@dataclass
class Process:
    """A process that records itself: a rank, or the driver."""

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
    """CPU time that no operator shows."""
    calls: list[Call] = field(default_factory=list)
    killed: int | None = None
    """When it was killed: its spans have what had ended by then."""

    def windows_in_manifest(self, truth: Truth) -> list[Window]:
        """Return its windows in the manifest."""
        if not self.recorded or (self.rank == "driver" and truth.shape.driver != "manifest"):
            return []
        return [window for window in self.windows if window.status is not None]

    def ended(self, at: int) -> bool:
        """Whether it had been killed by then."""
        return self.killed is not None and at > self.killed

    @property
    def peak_bytes(self) -> int:
        """The most that its allocator had given out, at the begin of each of its windows."""
        return (self.pid % 61 + 4) << 28

    @property
    def has_spans(self) -> bool:
        """Whether its span file is there, as far as its fate goes."""
        return self.fate != "absent"

    @property
    def recorded(self) -> bool:
        """Whether anything is known of it."""
        return self.fate != "absent"


@dataclass
class Scheduler:
    """One scheduler of an engine: forward steps of (start, end, batch size), which each of its workers goes."""

    group: int
    workers: int
    steps: list[tuple[int, int, int]]
    beyond: list[tuple[int, int, int]] = field(default_factory=list)
    """Those that were recorded after the window had ended."""


@dataclass
class Engine:
    """One replica, driven by a process."""

    replica: int
    machine: Machine
    role: str
    start: int
    end: int
    begin: int
    stop: int
    schedulers: list[Scheduler]


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
    """(machine, other machine, measured offset of the other one's clock, error) of each comparison."""
    visit: int = 1
    """How often the processes have come to this step number."""

    @property
    def spans(self) -> bool:
        """Whether processes write span files; ``manifest`` is a driver whose window only the manifest knows."""
        return self.shape.spans and self.shape.driver != "manifest"

    @property
    def first(self) -> Process:
        """The process that compares clocks: the first that writes into the manifest."""
        drivers = [process for process in self.processes if process.rank == "driver"]
        ordered = [*drivers, *(process for process in self.processes if process.rank != "driver")]
        windows_in_manifest = [process for process in ordered if process.windows_in_manifest(self)]
        return ordered[0] if self.engines or not windows_in_manifest else windows_in_manifest[0]

    @property
    def comparisons(self) -> list[tuple[int, int, int, int]]:
        """Those of `compared` that are in the manifest."""
        return self.compared if self.first.machine is self.machines[0] else []

    def process(self, rank: int | str) -> Process:
        """The process of a rank."""
        return next(process for process in self.processes if process.rank == rank)
