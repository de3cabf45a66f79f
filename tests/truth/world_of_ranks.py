"""Draw worlds of ranks that train on their batches and meet in collectives; one rank is a world too."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from truth.doings import (
    ALLOCATING,
    AWAITING,
    COLLECTING,
    COMPILING,
    COPYING,
    LAUNCHING,
    LOADING,
    LOCKED,
    PENDING,
    PICKLING,
    POOLING,
    READING,
    SCORING,
    SLEEPING,
    STARVED,
)
from truth.model import MS
from truth.planting import OF_CALLS, Builder, Calls, Planted
from truth.worlds import (
    COMPUTING,
    MEETING,
    PYTHON,
    WAITING,
    Action,
    Cause,
    Host,
    Meet,
    Name,
    Programs,
    Spend,
    Until,
    World,
)

__all__ = ["ranks_world"]

STEPS = 11
INNOCENT = ("evaluate_actions", "checkpoint_forward", "data_parallel_forward", "update_weights", "")
"""Regions whose names seem to show what they do."""
RECORDINGS = ("all", "all", "all", "no evidence", "no traces")
VARIANTS = (None, None, None, None, "deadline", "period", "apart", "capped")
"""What a world has of what is rare: ranks that work until a common time, causes in every third step, clocks that were never compared, a capture that ended early."""
PERIOD = 3
RAISED = 0.05
"""Share of the worlds in which an exception ends the step of a rank."""
LOST = 0.05
"""Share of the worlds in which the spans of a rank are missing."""
NEW = 0.1
"""Share of the worlds."""
ADDED_FIRST = ("get_batch", "fetch", "snapshot", "pack", "score", "judge", "ask_all", "collect")
ADDED_LAST = ("save_checkpoint", "checkpoint", "evaluate", "validation", "benchmark", "dump_tables")


@dataclass(frozen=True)
class Shape:
    """The drawn properties of a world."""

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
    noise: float
    recorded: int
    held: int
    innocent: str
    device: str
    deadline: int
    """How long after a collective the ranks work until a common time; 0: they do not."""
    calls: Calls | None
    """Calls that coroutines of each rank make."""

    @property
    def ns(self) -> int:
        """Return about how long a step takes without causes."""
        return self.data + self.micro * (self.forward + self.backward) + self.optimizer


def _variant(seed: int) -> str | None:
    return random.Random(f"variant {seed}").choice(VARIANTS)


def _shape(seed: int) -> Shape:
    drawn = random.Random(f"shape {seed}")
    until = random.Random(f"deadline {seed}").randint(300, 2000) * MS
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
        drawn.choice((0.001, 0.002, 0.01)),
        drawn.randint(2, 6),
        drawn.choice((1, 1, 10)),
        drawn.choice(INNOCENT),
        drawn.choice(("cpu", "cpu", "cuda")),
        until if _variant(seed) == "deadline" else 0,
        Calls.of(seed),
    )


def _step(shape: Shape, step: int, planted: Sequence[Planted], again: int) -> Programs:
    build = Builder(f"{shape.seed} {again}", step, shape.noise, planted, shape.held)
    ranks = tuple(range(shape.ranks))

    def meeting(key: str) -> list[Action]:
        return [Meet(key, ranks, 5 * MS)] if shape.ranks > 1 else []

    for rank in ranks:
        build.open(rank, shape.role)
        build.add(rank, build.work(rank, 2 * MS, PYTHON))
        together = shape.deadline and shape.ranks > 1
        if together:
            build.region(rank, "ready", *meeting("ready"))
        build.added(rank, *ADDED_FIRST)
        build.gather(rank, shape.calls)
        build.region(rank, "load_batch", build.work(rank, shape.data, PYTHON))
        build.region(rank, "prepare", build.work(rank, 10 * MS, PYTHON))
        if together:
            build.region(rank, "collect_batch", Until(shape.deadline, COMPUTING))
        if shape.innocent:
            build.region(rank, shape.innocent, build.work(rank, shape.forward))
        for number in range(shape.micro):
            last = meeting(f"backward {number}") if shape.meets else []
            build.region(rank, "forward", build.work(rank, shape.forward))
            build.region(rank, "backward", build.work(rank, shape.backward), *last)
        build.region(rank, "optimizer_step", *meeting("gradients"), build.work(rank, shape.optimizer))
        build.added(rank, *ADDED_LAST)
        build.close(rank)
    return build.programs


def _raise_in(world: World, rank: int, drawn: random.Random) -> None:
    """Let a rank raise an exception in the recorded step, after the last collective: the others wait for it no more."""
    program = world.steps[world.recorded][rank]
    met = max((at for at, each in enumerate(program) if isinstance(each, Meet)), default=len(program) // 2)
    after = [at for at, each in enumerate(program) if isinstance(each, Spend) and at > met and each.ns > 0]
    world.end_with_exception(rank, drawn.choice(after), drawn.uniform(0.1, 0.9))


Plant = Callable[[Shape, random.Random], tuple[Cause, Planted]]


def _length(shape: Shape, drawn: random.Random) -> int:
    return round(shape.ns * drawn.uniform(0.2, 0.6) / MS) * MS


def _slower(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    rank, region = drawn.randrange(shape.ranks), drawn.choice(("forward", "backward"))
    ns = _length(shape, drawn) // shape.micro
    planted = Planted("slower", {rank}, region, [ns], COMPUTING, _steps(shape, drawn))
    return Cause("slower", frozenset({"straggler"}), frozenset({rank}), region), planted


def _steps(shape: Shape, drawn: random.Random) -> Sequence[int]:
    return drawn.choice((range(STEPS), [shape.recorded]))


def _longer(
    topic: str, regions: Sequence[str], doings: Sequence, *, exact: bool = False, needs_evidence: bool = False
) -> Plant:
    """Return how to plant time in a region that exists: in all ranks or in one.

    `exact`: its length is known without samples. `needs_evidence`: spans and traces do not show what it is.
    """

    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        everyone = frozenset[Name](range(shape.ranks))
        who = drawn.choice((everyone, frozenset({drawn.randrange(shape.ranks)})))
        region = drawn.choice(regions)
        visits = shape.micro if region in ("forward", "backward") else 1
        topics = {topic} if who == everyone else {topic, "straggler"}
        length = _length(shape, drawn) // visits
        planted = Planted(topic, who, region, [length], drawn.choice(doings), _steps(shape, drawn))
        edges = 0 if exact else 2 * visits
        return Cause(
            topic, frozenset(topics), who, region, edges, needs_evidence=needs_evidence or not exact
        ), planted

    return plant


def _added(topic: str, regions: Sequence[str], doings: Sequence, *, once: bool = False) -> Plant:
    """Return how to plant a region that exists because of its cause only: in all ranks, or in the first."""

    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        who = drawn.choice((frozenset[Name](range(shape.ranks)), frozenset[Name]({0})))
        region = drawn.choice(regions)
        topics = {topic} if len(who) == shape.ranks else {topic, "straggler"}
        steps = [shape.recorded] if once else _steps(shape, drawn)
        doing = drawn.choice(doings)
        planted = Planted(topic, who, region, [_length(shape, drawn)], doing, steps, adds=True)
        return Cause(topic, frozenset(topics), who, region), planted

    return plant


def _serial(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    cause, planted = _added("serial", ("score", "judge"), SCORING)(shape, drawn)
    count = drawn.randint(4, 12)
    lengths = [max(planted.ns[0] // count, 60 * MS) for _ in range(count)]
    lengths[0] = round(lengths[0] * drawn.uniform(1, 2) / MS) * MS
    return replace(cause, sampled=2), replace(planted, ns=lengths, needed=lengths[0])


def _awaits(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    """Plant calls that a coroutine awaits one after the other, in one region."""
    cause, planted = _serial(shape, drawn)
    planted = replace(planted, region="ask_all", doing=drawn.choice(AWAITING), inside=True)
    return replace(cause, region="ask_all", topics=cause.topics | {"rare"}, needs_evidence=True), planted


def _threads(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    cause, planted = _added("threads", ("collect",), POOLING)(shape, drawn)
    return replace(cause, topics=cause.topics | {"rare"}, sampled=2, needs_evidence=True), planted


def _tokens(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    """Plant a rank with more tokens than the others, or with more samples."""
    cause, planted = _slower(shape, drawn)
    own = shape.forward if planted.region == "forward" else shape.backward
    tokens = drawn.randint(1_000, 9_000)
    more = round(tokens * (1 + planted.ns[0] / own))
    key = random.Random(f"amounts {shape.seed}").choice(("tokens", "tokens", "samples"))
    planted = replace(planted, amounts={key: more}, elsewhere={key: tokens})
    return replace(cause, more=key if planted.ns[0] > own / 5 else None), planted


def _half_batch(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    everyone = frozenset[Name](range(shape.ranks))
    room, region = 64, drawn.choice(("forward", "backward"))
    samples = drawn.randint(16, 44)
    own = shape.forward if region == "forward" else shape.backward
    ns = round(own * (room - samples) / samples / MS) * MS
    amounts = {"samples": samples, "batch_size": room}
    planted = Planted("half_batch", everyone, region, [ns], COMPUTING, range(STEPS), amounts=amounts)
    return Cause("half_batch", frozenset({"half_batch"}), everyone, region), planted


def _transfer(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    everyone = frozenset[Name](range(shape.ranks))
    region = "backward" if shape.meets else "optimizer_step"
    visits = shape.micro if shape.meets else 1
    planted = Planted("overlap", everyone, region, [_length(shape, drawn) // visits], MEETING, range(STEPS))
    return Cause("overlap", frozenset({"overlap"}), everyone, region), planted


KINDS: dict[str, Plant] = {
    "slower": _slower,
    "data": _longer("data", ("load_batch",), (*LOADING, PYTHON, WAITING), exact=True),
    "loader": _longer("data", ("prepare",), LOADING),
    "copy": _longer("copy", ("prepare",), COPYING),
    "pickle": _longer("pickle", ("prepare",), PICKLING),
    "io": _longer("io", ("prepare",), READING),
    "lock": _longer("lock", ("prepare",), LOCKED),
    "sleep": _longer("sleep", ("prepare",), SLEEPING),
    "compile": _longer("compile", ("forward",), COMPILING),
    "gc": _longer("gc", ("forward", "backward", "prepare"), COLLECTING, exact=True, needs_evidence=True),
    "checkpoint": _added("checkpoint", ("save_checkpoint", "checkpoint"), (*PICKLING, WAITING)),
    "evaluation": _added("evaluation", ("evaluate", "validation"), (COMPUTING, PYTHON)),
    "rare": _added("rare", ("benchmark", "dump_tables"), (COMPUTING, PYTHON), once=True),
    "serial": _serial,
    "half_batch": _half_batch,
    "overlap": _transfer,
    "host": _longer("host", ("forward", "backward"), LAUNCHING, exact=True),
    "memory": _longer("memory", ("forward", "backward"), ALLOCATING, exact=True),
}


def _starved(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    """Plant a rank that has no CPU most of the time."""
    cause, planted = _slower(shape, drawn)
    own = shape.forward if planted.region == "forward" else shape.backward
    ns = [max(planted.ns[0], own)]
    return replace(cause, starved=True), replace(planted, doing=drawn.choice(STARVED), ns=ns)


def _half(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
    """Plant several ranks that are equally slow: each is one of half of the others, or of fewer."""
    cause, planted = _slower(shape, drawn)
    some = frozenset[Name](drawn.sample(range(shape.ranks), drawn.randint(1, (shape.ranks + 1) // 2)))
    return replace(cause, processes=some), replace(planted, processes=some)


def _of_calls(kind: str) -> Plant:
    def plant(shape: Shape, drawn: random.Random) -> tuple[Cause, Planted]:
        assert shape.calls is not None
        everyone = frozenset[Name](range(shape.ranks))
        who = drawn.choice((everyone, frozenset({drawn.randrange(shape.ranks)})))
        cause, planted = shape.calls.planted(kind, who, _length(shape, drawn), _steps(shape, drawn))
        return cause if who == everyone else replace(cause, topics=cause.topics | {"straggler"}), planted

    return plant


CALL_KINDS: dict[str, Plant] = {kind: _of_calls(kind) for kind in OF_CALLS}
"""Worlds with coroutines have none or one of these, and at most one other cause."""
NEWER = 0.05
"""Share of the worlds that have one of the following causes alone."""
NEWER_KINDS: dict[str, Plant] = {"starved": _starved, "half": _half}
NEW_KINDS: dict[str, Plant] = {
    "tokens": _tokens,
    "threads": _threads,
    "awaits": _awaits,
    "pending": _longer("pending", ("forward", "backward"), PENDING, exact=True),
}
"""Some worlds have one of these alone."""
OF_RANKS = ("tokens", "slower", "overlap", "starved", "half")
"""Causes that a single rank cannot have."""
OF_DEVICES = ("host", "memory", "pending")


def ranks_world(
    seed: int, *, again: int = 0, kinds: Sequence[str] | None = None, always: bool = False, gap: int = 3 * MS
) -> World:
    """Return the world of a seed.

    Args:
        seed: of its shape, its causes and its noise.
        again: another world of this shape, with other noise and other clocks.
        kinds: the kinds of its causes; None: they are drawn.
        always: whether all steps have the causes.
        gap: time between two steps.
    """
    shape = _shape(seed)
    drawn = random.Random(f"causes {seed}")
    clocks = random.Random(f"clocks {seed} {again}")
    variant = _variant(seed) if kinds is None else None
    second = Host("node-1", clocks.randint(-5000, 5000) * MS, *((-1,) if variant == "apart" else ()))
    hosts = [Host("node-0"), second][: drawn.choice((1, 2))]
    on: dict[Name, int] = {rank: rank * len(hosts) // shape.ranks for rank in range(shape.ranks)}
    recording = clocks.choice(RECORDINGS) if kinds is None else "all"
    causes: list[Cause] = []
    planted: list[Planted] = []
    found = drawn.sample([*KINDS], drawn.choice((0, 1, 1, 1, 2, 3)))
    new = random.Random(f"new {seed}")
    if kinds is None and new.random() < NEW:
        found = [new.choice([*NEW_KINDS])]
    newer = random.Random(f"later {seed}")
    if kinds is None and newer.random() < NEWER:
        found = [newer.choice([*NEWER_KINDS])]
    if kinds is None and shape.calls is not None:
        found = [*found[:1], *newer.sample([*CALL_KINDS], newer.randint(0, 1))]
    for kind in found if kinds is None else kinds:
        alone = kind in OF_RANKS and shape.ranks == 1
        if alone or (kind in OF_DEVICES and shape.device == "cpu"):
            continue
        cause, more = {**KINDS, **NEW_KINDS, **NEWER_KINDS, **CALL_KINDS}[kind](shape, drawn)
        if variant == "period":
            cause = replace(cause, every=PERIOD)
            more = replace(more, steps=range(shape.recorded % PERIOD, STEPS, PERIOD))
        if more.inside and recording == "no evidence":
            more = replace(more, needed=0)  # nothing shows that the region is made of calls
        if all(each.region != more.region for each in planted):  # one cause in each region
            causes.append(replace(cause, name=kind, always=always or len(more.steps) == STEPS))
            planted.append(replace(more, cause=kind, steps=range(STEPS) if always else more.steps))
    steps = [_step(shape, step, planted, again) for step in range(STEPS)]
    cap = random.Random(f"capped {seed}")
    world = World("ranks", hosts, on, steps, shape.recorded, causes, shape.device, recording, gap)
    lost = random.Random(f"lost {seed}")
    if kinds is None and variant not in ("capped", "apart") and shape.ranks > 1 and lost.random() < LOST:
        world.lost = frozenset({lost.randrange(shape.ranks)})
    ends = random.Random(f"raised {seed}")
    if kinds is None and variant not in ("capped", "apart") and not world.lost and ends.random() < RAISED:
        _raise_in(world, ends.randrange(shape.ranks), ends)
    if variant == "capped":
        world.cap(cap.randrange(shape.ranks), cap.uniform(0.1, 0.9))
    return world
