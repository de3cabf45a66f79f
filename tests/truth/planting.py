"""Draw worlds, and plant causes in them. What is drawn for a place does not depend on the planted causes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from truth.model import MS
from truth.worlds import (
    COMPUTING,
    PYTHON,
    Action,
    Cause,
    Close,
    Doing,
    Enter,
    Host,
    Leave,
    Meet,
    Name,
    Open,
    Programs,
    Spend,
    World,
)

__all__ = ["draw_world"]

UNIT = 10_000


@dataclass(frozen=True)
class Planted:
    """Time that a cause adds to the visits of a region."""

    cause: str
    process: Name | None
    """None: every process that has the region."""
    region: str
    ns: int
    """In each visit."""
    doing: Doing
    steps: frozenset[int] | None = None
    """None: in all."""


@dataclass
class Builder:
    """Makes the programs of a step."""

    seed: int
    step: int
    recorded: bool
    noise: float
    """How much the same work differs, as a share of it."""
    planted: Sequence[Planted]
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
        self.add(name, Enter(region), *inside[:at], *self._extra(name, region), *inside[at:], Leave())

    def _extra(self, name: Name, region: str) -> Iterator[Spend]:
        for each in self.planted:
            here = each.region == region and each.process in (None, name)
            if here and (each.steps is None or self.step in each.steps):
                yield Spend(each.ns, each.doing, each.cause)

    def open(self, name: Name, role: str | None) -> None:
        """Append the begin of a window, which takes time if it is recorded."""
        drawn = self.drawn(name)
        self.add(name, Open(role, drawn.randint(1, 20) * MS, drawn.randint(1, 30) * MS))

    def close(self, name: Name) -> None:
        """Append the end of a window."""
        self.add(name, Close(self.drawn(name).randint(1, 30) * MS))


@dataclass(frozen=True)
class Shape:
    """The drawn properties of a world of ranks."""

    seed: int
    ranks: int
    role: str | None
    micro: int
    data: int
    forward: int
    backward: int
    optimizer: int
    meets: bool
    """Whether the ranks meet in `backward`, or in `optimizer_step` only."""


def _shape(seed: int) -> Shape:
    drawn = random.Random(f"shape {seed}")
    return Shape(
        seed,
        drawn.choice((1, 2, 2, 3, 4, 8)),
        drawn.choice(("actor", None)),
        drawn.choice((1, 2, 4)),
        drawn.randint(5, 20) * MS,
        drawn.randint(200, 800) * MS,
        drawn.randint(300, 1600) * MS,
        drawn.randint(50, 200) * MS,
        drawn.random() < 0.7,
    )


def _step(shape: Shape, step: int, recorded: int, planted: Sequence[Planted]) -> Programs:
    """Return a step of ranks that train on their batches and meet in collectives."""
    build = Builder(shape.seed, step, step == recorded, 0.01, planted)
    ranks = tuple(range(shape.ranks))

    def meeting(key: str) -> list[Action]:
        return [Meet(key, ranks, 5 * MS)] if shape.ranks > 1 else []

    for rank in ranks:
        build.open(rank, shape.role)
        build.add(rank, build.work(rank, 2 * MS, PYTHON))
        build.region(rank, "load_batch", build.work(rank, shape.data, PYTHON))
        for number in range(shape.micro):
            last = meeting(f"backward {number}") if shape.meets else []
            build.region(rank, "forward", build.work(rank, shape.forward))
            build.region(rank, "backward", build.work(rank, shape.backward), *last)
        build.region(rank, "optimizer_step", *meeting("gradients"), build.work(rank, shape.optimizer))
        build.close(rank)
    return build.programs


def draw_world(seed: int) -> World:
    """Return the world of a seed."""
    shape = _shape(seed)
    drawn = random.Random(f"causes {seed}")
    count, recorded = 9, drawn.randint(2, 6)
    hosts = [Host("node-0"), Host("node-1", drawn.randint(-5000, 5000) * MS)][: drawn.choice((1, 2))]
    on: dict[Name, int] = {rank: rank * len(hosts) // shape.ranks for rank in range(shape.ranks)}
    causes, planted = [], []
    if shape.ranks > 1 and drawn.random() < 0.7:
        rank, region = drawn.randrange(shape.ranks), drawn.choice(("forward", "backward"))
        whole = shape.micro * (shape.forward + shape.backward)
        ns = round(whole * drawn.uniform(0.2, 0.8) / shape.micro / MS) * MS
        steps = drawn.choice((None, frozenset({recorded})))
        planted.append(Planted("straggler", rank, region, ns, COMPUTING, steps))
        causes.append(Cause("straggler", frozenset({"straggler"}), frozenset({rank}), region))
    steps = [_step(shape, step, recorded, planted) for step in range(count)]
    return World("ranks", hosts, on, steps, recorded, causes)
