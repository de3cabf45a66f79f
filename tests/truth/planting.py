"""Build the programs of a step with planted causes. What is drawn for a place does not depend on these."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from truth.doings import GATHERING
from truth.model import MS
from truth.worlds import (
    COMPUTING,
    MEETING,
    NEEDED,
    UNIT,
    Action,
    Cause,
    Close,
    Doing,
    Enter,
    Gather,
    Leave,
    Meet,
    Name,
    Open,
    Spend,
)

__all__ = ["OF_CALLS", "UNIT", "Builder", "Calls", "Planted"]


@dataclass(frozen=True)
class Planted:
    """Time that a cause adds to a region."""

    cause: str
    processes: Collection[Name]
    region: str
    ns: Sequence[int]
    """In each visit. A region that exists already gets the first of them in each visit."""
    doing: Doing
    steps: Sequence[int]
    adds: bool = False
    """Whether the region exists because of the cause only."""
    needed: int = 0
    """How much of the first visit remains without the cause."""
    amounts: Mapping[str, int] = field(default_factory=dict)
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    """The amounts of the other processes, and of the steps without the cause."""
    inside: bool = False
    """Whether all visits are inside one region, and have none of their own."""


GATHERS = 0.1
"""Share of the worlds in which coroutines make calls."""
ASKING = "ask_many"
"""The region in which a thread waits for its coroutines. Its device does nothing meanwhile."""
OF_CALLS = ("late_call", "calls_in_turn")
"""Causes in them."""


class Calls(NamedTuple):
    """Calls of coroutines that run at the same time."""

    count: int
    ns: int
    """About how long each takes."""

    @classmethod
    def of(cls, seed: int) -> Calls | None:
        """Return those of the world of a seed; None: it has none."""
        drawn = random.Random(f"calls {seed}")
        return cls(drawn.randint(4, 32), drawn.randint(60, 400) * MS) if drawn.random() < GATHERS else None

    def planted(
        self, kind: str, who: frozenset[Name], ns: int, steps: Sequence[int]
    ) -> tuple[Cause, Planted]:
        """Return a cause: one call that takes longer, or calls that a semaphore lets through one by one."""
        topic = {"late_call": "tail", "calls_in_turn": "serial"}[kind]
        planted = Planted(topic, who, "ask", [ns], GATHERING, steps, inside=topic == "serial")
        cause = Cause(topic, frozenset({topic}), who, "ask", needs_evidence=True, around=ASKING)
        return cause, planted


@dataclass
class Builder:
    """Makes the programs of a step."""

    seed: str
    step: int
    noise: float
    """How much the same work differs, as a share of it."""
    planted: Sequence[Planted]
    held: int = 1
    """How much longer than usual the recording takes."""
    programs: dict[Name, list[Action]] = field(default_factory=dict)
    _drawn: dict[Name, random.Random] = field(default_factory=dict)

    def drawn(self, name: Name) -> random.Random:
        """Return the random numbers of a process in this step."""
        if name not in self._drawn:
            self._drawn[name] = random.Random(f"{self.seed} {self.step} {name}")
        return self._drawn[name]

    def work(self, name: Name, ns: int, doing: Doing = COMPUTING) -> Spend:
        """Return work of about some nanoseconds."""
        exact = ns * (1 + self.noise * self.drawn(name).uniform(-1, 1))
        return Spend(round(exact / UNIT) * UNIT, doing)

    def add(self, name: Name, *actions: Action) -> None:
        """Append to the program of a process."""
        self.programs.setdefault(name, []).extend(actions)

    def region(self, name: Name, region: str, *inside: Action) -> None:
        """Append a region with what is planted there: before the first collective in it."""
        at = next((at for at, each in enumerate(inside) if isinstance(each, Meet)), len(inside))
        planted = [*self._here(name, region, adds=False)]
        extra = [Spend(each.ns[0], each.doing, each.cause) for each in planted if each.doing != MEETING]
        slow = next((each for each in planted if each.doing == MEETING), None)
        amounts = {
            key: amount
            for each in self.planted
            if each.region == region
            for key, amount in (each.amounts if each in planted else each.elsewhere).items()
        }
        rest = [_slower(each, slow) for each in inside[at:]]
        self.add(name, Enter(region, amounts), *inside[:at], *extra, *rest, Leave())

    def added(self, name: Name, *regions: str) -> None:
        """Append the regions of some names that a cause has added."""
        for region in regions:
            for each in self._here(name, region, adds=True):
                visits = []
                for number, ns in enumerate(each.ns):
                    needed = 0 if number else each.needed
                    visits.append(
                        [
                            Spend(needed, each.doing, f"{each.cause}{NEEDED}"),
                            Spend(ns - needed, each.doing, each.cause),
                        ]
                    )
                if each.inside:
                    visits = [[spent for visit in visits for spent in visit]]
                for spent in visits:
                    self.add(name, Enter(region, each.amounts), *spent, Leave())

    def _here(self, name: Name, region: str, *, adds: bool) -> Iterator[Planted]:
        for each in self.planted:
            here = each.region == region and name in each.processes and self.step in each.steps
            if here and each.adds == adds:
                yield each

    def gather(self, name: Name, calls: Calls | None) -> None:
        """Append a region that waits for coroutines, each of which makes one call of another region."""
        if calls is None:
            return
        region, drawn = "ask", self.drawn(name)
        lengths = [round(calls.ns * drawn.uniform(0.98, 1) / UNIT) * UNIT for _ in range(calls.count)]
        usual = tuple((0, ns) for ns in lengths)
        action = Gather(region, usual, GATHERING)
        for each in self._here(name, region, adds=False):
            if each.inside:  # a semaphore lets them through one by one
                begins = accumulate(lengths, initial=0)
                late = tuple(zip(begins, lengths, strict=False))
            else:
                late = (*usual[1:], (0, usual[0][1] + each.ns[0]))
            action = Gather(region, late, GATHERING, each.cause, usual)
        self.add(name, Enter(ASKING), action, Leave())

    def open(self, name: Name, role: str | None) -> None:
        """Append the begin of a window, which takes time if it is recorded."""
        drawn = self.drawn(name)
        self.add(
            name, Open(role, drawn.randint(1, 20) * self.held * MS, drawn.randint(1, 30) * self.held * MS)
        )

    def close(self, name: Name) -> None:
        """Append the end of a window."""
        self.add(name, Close(self.drawn(name).randint(1, 30) * self.held * MS))


def _slower(action: Action, planted: Planted | None) -> Action:
    """Return a collective with the transfer that is planted."""
    if planted is None or not isinstance(action, Meet):
        return action
    return action._replace(transfer=planted.ns[0], cause=planted.cause)
