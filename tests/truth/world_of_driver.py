"""Draw worlds of a driver: engines generate for it, it scores the samples, and ranks train on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from truth.doings import (
    AWAITING,
    COLLECTING,
    COMPILING,
    COPYING,
    PICKLING,
    POOLING,
    READING,
    SCORING,
    SLEEPING,
)
from truth.model import MS
from truth.planting import OF_CALLS, Builder, Calls, Planted
from truth.worlds import (
    COMPUTING,
    DRIVER,
    PYTHON,
    WAITING,
    Action,
    Await,
    Cause,
    Enter,
    Forward,
    Host,
    Leave,
    Meet,
    Name,
    Programs,
    Signal,
    Spend,
    Until,
    World,
)

__all__ = ["driver_world"]

STEPS = 7
VARIANTS = (None, None, None, None, "deadline", "capped")
"""What a world has of what is rare: ranks that work until a common time, a capture that ended early."""
EVERYONE = frozenset[Name]({DRIVER})


@dataclass(frozen=True)
class Shape:
    """The drawn properties of a world."""

    seed: int
    ranks: int
    engines: int
    batch: int
    """Sequences of each engine."""
    forwards: int
    decode: int
    """Length of a forward step."""
    reward: int
    forward: int
    update: int
    noise: float
    recorded: int
    held: int
    windows: str
    """The windows of the driver: ``roles``; ``other``: that around the ranks has another role than theirs; ``step``: one around everything."""
    deadline: int = 0
    """How long after a collective the ranks work until a common time; 0: they do not."""
    calls: Calls | None = None
    """Calls that its coroutines make."""

    @property
    def ns(self) -> int:
        """Return about how long a step takes without causes."""
        return self.forwards * self.decode + self.reward + self.forward + self.update


def _variant(seed: int) -> str | None:
    return random.Random(f"variant {seed}").choice(VARIANTS)


def _shape(seed: int) -> Shape:
    drawn = random.Random(f"shape {seed}")
    return Shape(
        seed,
        drawn.choice((1, 2, 4)),
        drawn.choice((1, 1, 2, 3)),
        drawn.choice((8, 16, 64)),
        drawn.randint(20, 60),
        drawn.randint(10, 40) * MS,
        drawn.randint(20, 100) * MS,
        drawn.randint(200, 600) * MS,
        drawn.randint(300, 900) * MS,
        drawn.choice((0.001, 0.01)),
        drawn.randint(2, 4),
        drawn.choice((1, 1, 10)),
        drawn.choice(("roles", "roles", "other", "step")),
        calls=Calls.of(seed),
    )


def _generation(build: Builder, shape: Shape, engine: str) -> list[Action]:
    """Return the forward steps of an engine. Sequences finish until a few are left, which are a tail if it is long."""
    found: list[Action] = []
    last = max(2, shape.batch // 4)
    for number in range(shape.forwards):
        share = max(0.0, number / shape.forwards - 0.6) / 0.4
        batch = round(shape.batch - (shape.batch - last) * share)
        found.append(Forward(build.work(engine, shape.decode).ns, batch))
    for each in build.planted:
        if engine in each.processes and build.step in each.steps:
            if each.cause == "tail":
                found += [Forward(each.ns[0], 1, each.cause) for _ in each.ns]
            else:
                found = [*_preempted(found, each, build.drawn(f"{engine} preempts"))]
    return found


def _preempted(usual: Sequence[Action], planted: Planted, drawn: random.Random) -> Iterator[Action]:
    """Yield forward steps of which some compute sequences again that the engine preempted."""
    longer = dict(
        zip(sorted(drawn.sample(range(1, len(usual) // 2), len(planted.ns))), planted.ns, strict=True)
    )
    for at, each in enumerate(usual):
        assert isinstance(each, Forward)
        more = longer.get(at, 0)
        yield (
            Forward(each.ns + more, each.batch, planted.cause, each.ns, drawn.randint(50, 500))
            if more
            else each
        )


def _step(shape: Shape, step: int, planted: Sequence[Planted], again: int) -> Programs:
    build = Builder(
        f"{shape.seed} {again}" if again else f"{shape.seed}", step, shape.noise, planted, shape.held
    )
    ranks = tuple(range(shape.ranks))
    engines = [f"engine-{number}" for number in range(shape.engines)]

    def regions(name: Name, *names: str) -> list[Action]:
        """Return the time that causes add at the end of a region."""
        return [
            Spend(each.ns[0], each.doing, each.cause)
            for each in planted
            if each.region in names and name in each.processes and step in each.steps and not each.adds
        ]

    def begin(role: str) -> None:
        """Let the driver open the window of a role."""
        if shape.windows != "step":
            build.open(DRIVER, "train" if shape.windows == "other" and role == "actor" else role)
        elif role == "rollout":
            build.open(DRIVER, None)

    def finish(role: str) -> None:
        """Let the driver close it."""
        if shape.windows != "step" or role == "actor":
            build.close(DRIVER)

    generated = Await(tuple(f"generated by {each}" for each in engines))
    begin("rollout")
    build.added(DRIVER, "update_weights", "sync_weights", "get_batch")
    build.add(DRIVER, Enter("generate"), Signal("generate"), generated, build.work(DRIVER, MS, PYTHON))
    build.add(DRIVER, *regions(DRIVER, "generate"), Leave())
    finish("rollout")
    begin("reward")
    build.region(DRIVER, "compute_reward", build.work(DRIVER, shape.reward, PYTHON))
    build.gather(DRIVER, shape.calls)
    build.added(
        DRIVER,
        "score",
        "judge",
        "snapshot",
        "pack",
        "ask_judge",
        "evaluate",
        "benchmark",
        "ask_all",
        "collect",
    )
    finish("reward")
    begin("actor")
    trained = Await(tuple(f"trained by {each}" for each in ranks))
    build.add(DRIVER, Enter("update"), Signal("train"), trained, build.work(DRIVER, MS, PYTHON))
    build.add(DRIVER, *regions(DRIVER, "update"), Leave())
    finish("actor")
    for engine in engines:
        generation = _generation(build, shape, engine)
        build.add(engine, Await(("generate",)), *generation, Signal(f"generated by {engine}"))
    for rank in ranks:
        met = [Meet("gradients", ranks, 5 * MS)] if shape.ranks > 1 else []
        build.add(rank, Await(("train",)))
        build.open(rank, "actor")
        together = shape.deadline and shape.ranks > 1
        if together:
            build.region(rank, "ready", Meet("ready", ranks, 5 * MS))
        build.region(rank, "forward", build.work(rank, shape.forward))
        if together:
            build.region(rank, "collect_batch", Until(shape.deadline, COMPUTING))
        build.region(rank, "backward", build.work(rank, shape.update), *met)
        build.region(rank, "optimizer_step", build.work(rank, 20 * MS))
        build.close(rank)
        build.add(rank, Signal(f"trained by {rank}"))
    return build.programs


Plant = Callable[[Shape, random.Random], tuple[Cause, Planted]]


def _length(shape: Shape, drawn: random.Random) -> int:
    return round(shape.ns * drawn.uniform(0.2, 0.6) / MS) * MS


def _steps(shape: Shape, drawn: random.Random) -> Sequence[int]:
    return drawn.choice((range(STEPS), [shape.recorded]))


def _tail(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    engine: Name = f"engine-{drawn.randrange(shape.engines)}"
    count = max(4, round(_length(shape, drawn) / shape.decode), shape.forwards // 3)
    planted = Planted("tail", {engine}, "", [shape.decode] * count, COMPUTING, _steps(shape, drawn))
    return Cause("tail", frozenset({"tail"}), frozenset({engine}), "generate"), planted


def _preempts(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    engine: Name = f"engine-{drawn.randrange(shape.engines)}"
    count = drawn.randint(1, 6)
    ns = round(_length(shape, drawn) / count / MS) * MS
    planted = Planted("preempts", {engine}, "", [ns] * count, COMPUTING, _steps(shape, drawn))
    return Cause("preempts", frozenset({"preemption"}), frozenset({engine}), "generate"), planted


def _poll(region: str, doing: Sequence = (WAITING, *SLEEPING)) -> Plant:
    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        planted = Planted(
            "poll", EVERYONE, region, [_length(shape, drawn)], drawn.choice(doing), _steps(shape, drawn)
        )
        topics = {"poll"} if shape.windows == "roles" else {"poll", "sleep"}
        return Cause("poll", frozenset(topics), EVERYONE, region), planted

    return plant


def _in_rank(topic: str, doings: Sequence, *, sampled: int = 0) -> Plant:
    """Return how to plant time in one rank, or in all."""

    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        everyone = frozenset[Name](range(shape.ranks))
        one = frozenset[Name]({drawn.randrange(shape.ranks)})
        who = one if topic == "straggler" else drawn.choice((everyone, one))
        region = drawn.choice(("forward", "backward"))
        topics = {topic} if who == everyone else {topic, "straggler"}
        planted = Planted(
            topic, who, region, [_length(shape, drawn)], drawn.choice(doings), _steps(shape, drawn)
        )
        return Cause(topic, frozenset(topics), who, region, sampled, needs_evidence=sampled > 0), planted

    return plant


def _by_driver(topic: str, regions: Sequence[str], doings: Sequence, *, once: bool = False) -> Plant:
    """Return how to plant a region of the driver."""

    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        region = drawn.choice(regions)
        steps = [shape.recorded] if once else _steps(shape, drawn)
        doing = drawn.choice(doings)
        planted = Planted(topic, EVERYONE, region, [_length(shape, drawn)], doing, steps, adds=True)
        return Cause(topic, frozenset({topic}), EVERYONE, region, 2), planted

    return plant


def _serial(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    cause, planted = _by_driver("serial", ("score", "judge"), SCORING)(shape, drawn)
    count = drawn.randint(4, 12)
    lengths = [max(planted.ns[0] // count, 60 * MS) for _ in range(count)]
    return cause, replace(planted, ns=lengths, needed=lengths[0])


KINDS: dict[str, Plant] = {
    "tail": _tail,
    "poll": _poll("generate"),
    "poll_ranks": _poll("update"),
    "slower": _in_rank("straggler", (COMPUTING,)),
    "gc": _in_rank("gc", COLLECTING),
    "compile": _in_rank("compile", COMPILING, sampled=2),
    "weight_sync": _by_driver("weight_sync", ("update_weights", "sync_weights"), (PYTHON, WAITING)),
    "data": _by_driver("data", ("get_batch",), (PYTHON, WAITING)),
    "copy": _by_driver("copy", ("snapshot",), COPYING),
    "pickle": _by_driver("pickle", ("pack",), PICKLING),
    "io": _by_driver("io", ("ask_judge",), READING),
    "evaluation": _by_driver("evaluation", ("evaluate",), (PYTHON, WAITING)),
    "rare": _by_driver("rare", ("benchmark",), (PYTHON,), once=True),
    "serial": _serial,
}


def _awaits(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    cause, planted = _serial(shape, drawn)
    planted = replace(planted, region="ask_all", doing=drawn.choice(AWAITING), inside=True)
    return replace(cause, region="ask_all", needs_evidence=True), planted


NEW = 0.1
"""Share of the worlds that have one of the following causes alone, and of those with a capture that ended early."""
NEW_KINDS: dict[str, Plant] = {
    "awaits": _awaits,
    "threads": _by_driver("threads", ("collect",), POOLING),
    "preempts": _preempts,
}


def _of_calls(kind: str) -> Plant:
    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        assert shape.calls is not None
        return shape.calls.planted(kind, EVERYONE, _length(shape, drawn), _steps(shape, drawn))

    return plant


RARE = 0.15
"""Share of the worlds without another variant in which spans are missing, or the capture of an engine or the driver ended early."""
CALL_KINDS: dict[str, Plant] = {kind: _of_calls(kind) for kind in OF_CALLS}
"""Worlds with coroutines have none or one of these, and at most one other cause."""


def driver_world(
    seed: int, *, again: int = 0, kinds: Sequence[str] | None = None, always: bool = False, gap: int = 3 * MS
) -> World:
    """Return the world of a seed. The arguments are those of `truth.world_of_ranks.ranks_world`."""
    variant = _variant(seed) if kinds is None else None
    shape = _shape(seed)
    if variant == "deadline":
        shape = replace(shape, deadline=random.Random(f"deadline {seed}").randint(300, 2000) * MS)
    count = STEPS + 4 if always else STEPS  # the gate needs more
    drawn = random.Random(f"causes {seed}")
    ahead = drawn.randint(-5000, 5000)
    if again:
        ahead = random.Random(f"clocks {seed} {again}").randint(-5000, 5000)
    hosts = [Host("node-0"), Host("node-1", ahead * MS)][: drawn.choice((1, 2))]
    on: dict[Name, int] = {DRIVER: 0}
    on |= {rank: rank * len(hosts) // shape.ranks for rank in range(shape.ranks)}
    on |= {f"engine-{number}": len(hosts) - 1 for number in range(shape.engines)}
    causes: list[Cause] = []
    planted: list[Planted] = []
    found = drawn.sample([*KINDS], drawn.choice((0, 1, 1, 1, 2, 3)))
    new = random.Random(f"new {seed}")
    if kinds is None and new.random() < NEW:
        found = [new.choice([*NEW_KINDS])]
    if kinds is None and shape.calls is not None:
        found = [*found[:1], *new.sample([*CALL_KINDS], new.randint(0, 1))]
    for kind in found if kinds is None else kinds:
        if kind == "slower" and shape.ranks == 1:
            continue
        cause, more = {**KINDS, **NEW_KINDS, **CALL_KINDS}[kind](shape, drawn)
        if all(each.region != more.region for each in planted):  # one cause in each region
            causes.append(replace(cause, name=kind, always=always or len(more.steps) == STEPS))
            planted.append(replace(more, cause=kind, steps=range(count) if always else more.steps))
    steps = [_step(shape, step, planted, again) for step in range(count)]
    world = World("driver", hosts, on, steps, shape.recorded, causes, gap=gap)
    if variant == "capped":
        cap = random.Random(f"capped {seed}")
        for rank in cap.sample(range(shape.ranks), cap.randint(1, shape.ranks)):
            world.cap(rank, cap.uniform(0.1, 0.9))
    rare = random.Random(f"rare {seed}")
    if kinds is None and variant is None and rare.random() < RARE:
        rare.choice((_lose_rank, _lose_driver, _cap_engines, _cap_driver))(world, rare)
    return world


def _lose_rank(world: World, drawn: random.Random) -> None:
    """Let the spans of a rank be missing."""
    world.lost = frozenset({drawn.choice([name for name in world.on if isinstance(name, int)])})


def _lose_driver(world: World, drawn: random.Random) -> None:
    world.lost = frozenset({DRIVER})


def _cap_engines(world: World, drawn: random.Random) -> None:
    """End the captures of engines early."""
    some = drawn.sample(sorted(map(str, world.engines)), drawn.randint(1, len(world.engines)))
    world.capped = {name: drawn.uniform(0.1, 0.95) for name in some}


def _cap_driver(world: World, drawn: random.Random) -> None:
    """End the recording of the driver early: after that, its spans show regions alone."""
    world.cap(DRIVER, drawn.uniform(0.1, 0.95))
    world.causes = [replace(each, topics=each.topics | {"rare"}) for each in world.causes]
