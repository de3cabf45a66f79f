"""Run the programs of a world: compute when each process does what, and what it waits for.

Times are nanoseconds of one true clock. The order of the programs does not matter: a process waits only for
signals and for members of a collective.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from truth.worlds import (
    HELD,
    MEETING,
    NEEDED,
    Action,
    Await,
    Close,
    Doing,
    Enter,
    Forward,
    Gather,
    Leave,
    Meet,
    Name,
    Open,
    Programs,
    Signal,
    Spend,
    Until,
    World,
)

LEAST = 10_000
"""What a rank needs to see that a common time is over [ns]."""


class Piece(NamedTuple):
    """What a thread did without a break."""

    start: int
    end: int
    doing: Doing
    role: str | None
    region: tuple[str, ...]
    awaited: Mapping[Name, int] = {}
    """The processes that it waited for, and how long before the last of them each was there [ns]; empty: it worked."""
    cause: str | None = None


@dataclass
class Ranged:
    """A window or region of a process."""

    name: str | None
    role: str | None
    start: int
    end: int = 0
    amounts: Mapping[str, int] = field(default_factory=dict)
    raised: bool = False
    task: int | None = None
    arm: int = 0
    begin: int = 0
    stall: int = 0


class Met(NamedTuple):
    """A collective of a process."""

    key: str
    members: tuple[int, ...]
    arrive: int
    leave: int


class Step(NamedTuple):
    """A forward step of an engine."""

    start: int
    end: int
    batch: int
    cause: str | None
    usual: int = 0
    again: int = 0


@dataclass
class Line:
    """What one process did in a step."""

    clock: int
    pieces: list[Piece] = field(default_factory=list)
    windows: list[Ranged] = field(default_factory=list)
    regions: list[Ranged] = field(default_factory=list)
    met: list[Met] = field(default_factory=list)
    forwards: list[Step] = field(default_factory=list)
    waited: list[tuple[int, int, str | None]] = field(default_factory=list)
    """The actions before which it waited, as (index, nanoseconds, role)."""
    _window: Ranged | None = None
    _regions: list[Ranged] = field(default_factory=list)

    def spend(
        self, ns: int, doing: Doing, awaited: Mapping[Name, int] = {}, cause: str | None = None
    ) -> None:
        """Add time of the process."""
        if ns > 0:
            role = None if self._window is None else self._window.role
            region = tuple(str(each.name) for each in self._regions)
            self.pieces.append(Piece(self.clock, self.clock + ns, doing, role, region, awaited, cause))
            self.clock += ns

    def wait(self, at: int, until: Mapping[Name, int], doing: Doing) -> None:
        """Wait at an action for the last of some processes."""
        last = max(until.values())
        role = None if self._window is None else self._window.role
        self.waited.append((at, max(last - self.clock, 0), role))
        self.spend(last - self.clock, doing, {name: last - time for name, time in until.items()})

    def gather(self, action: Gather, without: Collection[str]) -> None:
        """Wait for the calls of coroutines; what they take longer because of a cause is the time of the cause."""
        calls = action.otherwise if action.cause in without else action.calls
        role = None if self._window is None else self._window.role
        for number, (begin, ns) in enumerate(calls, 1):
            start = self.clock + begin
            self.regions.append(Ranged(action.name, role, start, start + ns, task=number))
        last = max(begin + ns for begin, ns in calls)
        usual = min(last, max(begin + ns for begin, ns in action.otherwise or action.calls))
        self.spend(usual, action.doing, cause=action.cause and f"{action.cause}{NEEDED}")
        self.spend(last - usual, action.doing, cause=action.cause)

    def mark(self, action: Open | Close | Enter | Leave, *, held: bool) -> None:
        """Begin or end a window or a region; `held`: the recording takes its time."""
        if isinstance(action, Open):
            window = Ranged(None, action.role, 0)
            if held:
                window.arm, window.begin = action.arm, action.begin
            self.clock += window.arm + window.begin
            window.start = self.clock
            self._window = window
            self.windows.append(window)
        elif isinstance(action, Close):
            assert self._window is not None
            self._window.end, self._window.stall = self.clock, action.stall if held else 0
            self.clock += self._window.stall
            self._window = None
        elif isinstance(action, Enter):
            role = None if self._window is None else self._window.role
            region = Ranged(action.name, role, self.clock, amounts=action.amounts)
            self._regions.append(region)
            self.regions.append(region)
        else:
            region = self._regions.pop()
            region.end, region.raised = self.clock, action.raised


@dataclass
class Ran:
    """A step that has run."""

    lines: dict[Name, Line]
    begun: int
    """When its processes began."""

    @property
    def start(self) -> int:
        """Return the begin of its first window."""
        return min(window.start for line in self.lines.values() for window in line.windows)

    @property
    def end(self) -> int:
        """Return the end of its last window."""
        return max(window.end for line in self.lines.values() for window in line.windows)

    @property
    def ns(self) -> int:
        """Return its length."""
        return self.end - self.start


def run(programs: Programs, start: int, without: Collection[str] = ()) -> Ran:
    """Run a step.

    Args:
        programs: of all processes.
        start: when the processes begin.
        without: the causes that the world lacks; `HELD`: it is not recorded.
    """
    lines = {name: Line(start) for name in programs}
    at = dict.fromkeys(programs, 0)
    signals: dict[str, tuple[int, Name]] = {}
    waiting: dict[str, dict[Name, Meet]] = defaultdict(dict)
    moved = True
    while moved:
        moved = False
        for name, program in programs.items():
            while at[name] < len(program):
                action = program[at[name]]
                if isinstance(action, Meet):
                    waiting[action.key][name] = action
                    if len(waiting[action.key]) < len(action.members):
                        break
                    _meet(lines, at, waiting.pop(action.key), without)
                elif not _do(lines[name], name, (at[name], action), signals, without):
                    break
                else:
                    at[name] += 1
                moved = True
    stuck = [name for name, program in programs.items() if at[name] < len(program)]
    assert not stuck, f"these wait forever: {stuck}"
    return Ran(lines, start)


def _do(
    line: Line,
    name: Name,
    numbered: tuple[int, Action],
    signals: dict[str, tuple[int, Name]],
    without: Collection[str],
) -> bool:
    """Do what a process does alone; return whether it could."""
    at, action = numbered
    if isinstance(action, Spend):
        if action.cause not in without:
            line.spend(action.ns, action.doing, cause=action.cause)
    elif isinstance(action, Gather):
        line.gather(action, without)
    elif isinstance(action, Until):
        line.spend(max(line.met[-1].leave + action.ns - line.clock, LEAST), action.doing)
    elif isinstance(action, Forward):
        without_it = action.cause in without
        ns = action.usual if without_it else action.ns
        rest = () if without_it else (action.usual, action.again)
        if ns:
            cause = None if without_it else action.cause
            line.forwards.append(Step(line.clock, line.clock + ns, action.batch, cause, *rest))
            line.clock += ns
    elif isinstance(action, Signal):
        signals[action.key] = (line.clock, name)
    elif isinstance(action, Await):
        if any(key not in signals for key in action.keys):
            return False
        line.wait(at, {other: time for time, other in (signals[key] for key in action.keys)}, action.doing)
    else:
        assert not isinstance(action, Meet)
        line.mark(action, held=HELD not in without)
    return True


def _meet(
    lines: Mapping[Name, Line], at: dict[Name, int], members: Mapping[Name, Meet], without: Collection[str]
) -> None:
    arrived = {name: lines[name].clock for name in members}
    for name, action in members.items():
        line = lines[name]
        line.wait(at[name], arrived, MEETING)
        if action.cause is None or action.cause not in without:
            line.spend(action.transfer, MEETING, cause=action.cause)
        line.met.append(Met(action.key, action.members, arrived[name], line.clock))
        at[name] += 1


def run_all(world: World, start: int) -> list[Ran]:
    """Run the steps of a world one after another; only one of them is recorded."""
    found: list[Ran] = []
    for number, programs in enumerate(world.steps):
        ran = run(programs, start, () if number == world.recorded else (HELD,))
        found.append(ran)
        start = max(line.clock for line in ran.lines.values()) + world.gap
    return found
