"""The elements of a world: what each process of a job does, as programs of simple actions.

A program says what a process does and what it waits for, not when. `scheduling` computes the times, so that
the same world can run again without one of its causes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Name = int | str
"""A rank, ``driver``, or ``engine-0``."""
DRIVER = "driver"
UNIT = 10_000
"""All times are multiples of this [ns]."""
HELD = "held"
"""The cause of the time that the recording takes."""

NEEDED = ", needed"
"""After the name of a cause: the part of its time that remains without it."""

Frame = tuple[str, str, int, bool]
"""Function, file, line, and whether it is the job's own code."""


@dataclass(frozen=True)
class Doing:
    """What a thread does for some time, as samples and the trace show it."""

    call: str | None
    """The call of the innermost line; None: the innermost function itself runs."""
    frames: tuple[Frame, ...]
    """The innermost first."""
    cpu: float = 0.0
    """Share of the time on a CPU."""
    operator: str | None = None
    """What the trace shows."""
    kernel: bool = False
    """Whether the device works meanwhile."""
    compiles: bool = False
    collects: bool = False
    """Whether it is a pause of the garbage collector."""
    awaits: str | None = None
    """The function that a coroutine awaits meanwhile: a call of it for each piece."""
    others: Doing | None = None
    """What a thread of a pool does meanwhile."""
    late: bool = False
    """Whether it launches a kernel that begins only at its end."""
    queued: float = 0.0
    """Share of the time in which it is ready to run, and has no CPU."""


LOOP: Frame = ("train", "train.py", 40, True)


def own(function: str, line: int = 12) -> Frame:
    """Return a frame of the job's own code."""
    return (function, "train.py", line, True)


def library(function: str, file: str, line: int = 100) -> Frame:
    """Return a frame of a library."""
    return (function, file, line, False)


COMPUTING = Doing("F.linear", (library("forward", "linear.py"), own("forward"), LOOP), 1.0, "aten::mm", True)
PYTHON = Doing(None, (own("prepare"), LOOP), 1.0)
WAITING = Doing("time.sleep", (own("wait_for"), LOOP))
MEETING = Doing("work.wait", (library("all_reduce", "distributed_c10d.py"), own("reduce"), LOOP))


class Open(NamedTuple):
    """Open a window. If it is recorded, that takes time before."""

    role: str | None
    arm: int = 0
    begin: int = 0


class Close(NamedTuple):
    """Close the window. If it is recorded, that takes time afterwards."""

    stall: int = 0


class Enter(NamedTuple):
    """Enter a region."""

    name: str
    amounts: Mapping[str, int] = {}


class Leave(NamedTuple):
    """Leave the innermost region."""

    raised: bool = False
    """Whether by an exception."""


class Spend(NamedTuple):
    """Do something for some nanoseconds; not in a world without its cause."""

    ns: int
    doing: Doing
    cause: str | None = None


class Meet(NamedTuple):
    """Take part in a collective: no member leaves before all have arrived."""

    key: str
    members: tuple[int, ...]
    transfer: int
    cause: str | None = None
    """Without it, computation hides the transfer."""


class Until(NamedTuple):
    """Work until some nanoseconds after the last collective."""

    ns: int
    doing: Doing


class Gather(NamedTuple):
    """Wait for coroutines, each of which makes one call of a region."""

    name: str
    calls: tuple[tuple[int, int], ...]
    """When each begins, and how long it takes [ns]."""
    doing: Doing
    cause: str | None = None
    otherwise: tuple[tuple[int, int], ...] = ()
    """The calls without the cause."""


class Signal(NamedTuple):
    """Let the processes that await it continue."""

    key: str


class Await(NamedTuple):
    """Wait for signals."""

    keys: tuple[str, ...]
    doing: Doing = WAITING


class Forward(NamedTuple):
    """A forward step of an engine."""

    ns: int
    batch: int
    cause: str | None = None
    usual: int = 0
    """Its length without the cause; 0: then it is not there."""
    again: int = 0
    """Tokens that it computes again because of the cause."""


Action = Open | Close | Enter | Leave | Spend | Gather | Until | Meet | Signal | Await | Forward
Programs = Mapping[Name, Sequence[Action]]


@dataclass(frozen=True)
class Cause:
    """A planted cause, and what a true finding about it says."""

    name: str
    """By which actions refer to it."""
    topics: frozenset[str]
    """The topics that are true of it."""
    processes: frozenset[Name]
    """Who may be blamed."""
    region: str | None
    """Its innermost region; None: a whole window."""
    sampled: int = 0
    """At how many edges its length is known only by samples."""
    always: bool = False
    """Whether all steps have it, not the recorded one alone."""
    every: int = 0
    """The period of the steps that have it; 0: not some of them."""
    more: str | None = None
    """What its processes have more of than the others."""
    starved: bool = False
    """Whether its processes have no CPU most of the time."""
    needs_evidence: bool = False
    """Whether only samples, or recorded collections, show what it is."""
    around: str | None = None
    """The region in which the thread waits for that of its coroutines."""


@dataclass(frozen=True)
class Host:
    """A machine: how far its clock is ahead, and the error of the comparison with the first one."""

    name: str
    offset: int = 0
    error: int = 50_000


@dataclass
class World:
    """A job of some steps, one of which is recorded."""

    kind: str
    hosts: list[Host]
    on: dict[Name, int]
    """The host of each process."""
    steps: list[Programs]
    recorded: int
    """The number of the recorded step. Steps are numbered from 0."""
    causes: list[Cause] = field(default_factory=list)
    device: str = "cpu"
    recording: str = "all"
    """What was recorded: ``all``, ``no evidence``, ``no traces`` or ``no spans``."""
    gap: int = 3_000_000
    """Time between two steps."""
    capped: Mapping[Name, float] = field(default_factory=dict)
    """After which share of their windows the captures of some processes ended."""
    lost: frozenset[Name] = frozenset()
    """The processes whose spans are missing."""
    raised: frozenset[Name] = frozenset()
    """The processes whose windows an exception ended."""

    def cap(self, name: Name, share: float) -> None:
        """End the capture of a process after a share of its windows: nothing holds their ends up."""
        self.capped = {**self.capped, name: share}
        program = self.steps[self.recorded][name]
        ended = [each if not isinstance(each, Close) else Close() for each in program]
        self.steps[self.recorded] = {**self.steps[self.recorded], name: ended}

    def end_with_exception(self, name: Name, at: int, share: float) -> None:
        """Let a process raise in the recorded step, after a share of what it spends in an action, and leave the window."""
        program = self.steps[self.recorded][name]
        action = program[at]
        assert isinstance(action, Spend)
        opened = sum(isinstance(each, Enter) - isinstance(each, Leave) for each in program[:at])
        rest = [Leave(raised=True)] * opened, [each for each in program[at:] if isinstance(each, Close)]
        ended = [
            *program[:at],
            action._replace(ns=round(action.ns * share / UNIT) * UNIT),
            *rest[0],
            *rest[1],
        ]
        self.steps[self.recorded] = {**self.steps[self.recorded], name: ended}
        self.raised |= {name}

    @property
    def engines(self) -> frozenset[Name]:
        """Return its engines."""
        return frozenset(name for name in self.on if isinstance(name, str) and name != DRIVER)

    @property
    def waits_known(self) -> bool:
        """Return whether each wait in a collective was recorded."""
        return self.recording != "no traces" and not self.capped

    def captured(self, name: Name, start: int, end: int) -> int:
        """Return until when the capture of a window of a process lasted."""
        return start + round(self.capped.get(name, 1.0) * (end - start))
