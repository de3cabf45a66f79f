"""Sum up what the engines and the bound samples of one role generated: how many were in generation at each moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepprof.analysis.report.engine_work import Batches, StageTotal, added
from stepprof.analysis.report.processes import Process, engine_of
from stepprof.analysis.report.rollout import Curve, Samples, total_curve
from stepprof.analysis.report.wording import names
from stepprof.analysis.timeline.file_names import group_of
from stepprof.analysis.timeline.model import Origin

SUMS = ("all engines", "all samples")
"""How the labels of sums begin."""

MIN_EDGES = 3
"""Edges of two forward steps: a single step of two engines may begin at one time by chance."""


@dataclass(slots=True)
class Engine:
    """The schedulers of one engine.

    Workers of one scheduler run the same steps, so the busiest of them represents it. Workers of a
    data-parallel engine run steps of their own.
    """

    name: str = ""
    role: str | None = None
    labels: list[str] = field(default_factory=list)
    """Of its workers."""
    alone: bool = False
    """Whether its traces are of an unknown engine."""
    schedulers: dict[object, dict[object, tuple[str, Batches]]] = field(default_factory=dict)

    def add(self, process: Process, origin: Origin, batches: Batches) -> None:
        """Add the forward steps of one worker."""
        self.name, self.role = engine_of(origin), origin.role
        self.labels.append(process.label)
        workers = self.schedulers.setdefault(group_of(origin.path), {})
        known = workers.get(origin.rank)
        if known is None or known[1].iterations < batches.iterations:
            workers[origin.rank] = (process.label, batches)

    def _each(self) -> list[tuple[str, Batches]]:
        return [
            max(workers.values(), key=lambda worker: worker[1].iterations)
            for workers in self.schedulers.values()
        ]

    def together(self) -> tuple[str, Curve, int, float | None]:
        """Return the label, the batch size over time of all schedulers, their forward steps, and
        the peak if single steps are known.
        """
        each = self._each()
        if len(each) == 1:
            label, batches = each[0]
            label = names(self.labels) if self.alone else label
            return label, batches.curve(), batches.iterations, batches.peak
        curve = total_curve([batches.curve() for _, batches in each])
        return self.name, curve, sum(batches.iterations for _, batches in each), None

    def opening_tokens(self) -> int:
        """Return the tokens of prompts that all schedulers computed before their first decode steps."""
        return sum(batches.opening_tokens for _, batches in self._each())

    def stages(self) -> list[StageTotal]:
        """Return the forward steps of all schedulers by stage."""
        return added(stage for _, batches in self._each() for stage in batches.stages)


def engines_in(processes: Sequence[Process]) -> dict[tuple[object, ...], Engine]:
    """Return the engines with forward steps that are known to be of the step."""
    engines: dict[tuple[object, ...], Engine] = {}
    of_others: dict[tuple[object, ...], Batches] = {}
    for process in processes:
        for digest in process.digests:
            if digest.batches is None or digest.unclear:
                continue
            origin, batches = digest.origin, digest.batches
            key: tuple[object, ...] = (origin.role, origin.replica, origin.occurrence)
            if origin.replica is None:
                key = (process.label,)
                alike = (each for each, known in of_others.items() if _is_same_engine(known, batches))
                key = next(alike, key) if origin.ranked else key
                of_others.setdefault(key, batches)
            engines.setdefault(key, Engine(alone=origin.replica is None)).add(process, origin, batches)
    return engines


def _is_same_engine(one: Batches, other: Batches) -> bool:
    """Return whether two ranks of one clock are workers of one engine: each of their forward steps has the same requests, and begins
    within half a step. Ranks of different engines drift apart.
    """
    mine, theirs = one.curve(), other.curve()
    if len(mine.time) < MIN_EDGES or not np.array_equal(mine.value, theirs.value):
        return False
    return bool(np.abs(mine.time - theirs.time).max() <= np.median(np.diff(mine.time)) / 2)


@dataclass(frozen=True, slots=True)
class Generation:
    """The generation of one role, by several engines or by processes that bound samples."""

    role: str | None
    curve: Curve
    """Sequences in all engines of the role, or samples in flight."""
    labels: list[str]
    """The workers of the engines, or the processes."""
    parts: int
    """How many engines or processes."""
    iterations: int = 0
    """Forward steps; 0 for samples."""
    whole: bool = True
    """Whether the captures cover all of it."""
    unclear: bool = False
    """Whether it is not known of all forward steps whether they are of the step."""
    samples: list[Samples] = field(default_factory=list)


def generations_of(processes: Sequence[Process], short: Collection[str]) -> list[Generation]:
    """Return the generation of each role: by its engines, then by its samples.

    Args:
        processes: of one clock.
        short: labels whose captures do not cover their windows.
    """
    by_role: dict[str | None, list[Engine]] = defaultdict(list)
    for engine in engines_in(processes).values():
        by_role[engine.role].append(engine)
    unclear = {digest.origin.role for process in processes for digest in process.digests if digest.unclear}
    found = []
    for role, engines in by_role.items():
        made = [engine.together() for engine in engines]
        found.append(
            Generation(
                role,
                total_curve([curve for _, curve, _, _ in made]),
                [label for engine in engines for label in engine.labels],
                len(engines),
                sum(count for _, _, count, _ in made),
                not any(engine.name in short for engine in engines),
                role in unclear,
            )
        )
    return [*found, *_of_samples(processes)]


def bound_samples(processes: Sequence[Process]) -> list[tuple[str, Samples]]:
    """Return the samples of each process that generates several at the same time, with its label.

    The others look at their samples one after the other.
    """
    return [
        (process.label, digest.samples)
        for process in processes
        for digest in process.digests
        if digest.samples is not None and digest.origin.kind == "spans"
        if digest.samples.curve().value.max(initial=0) > 1
    ]


def _of_samples(processes: Sequence[Process]) -> list[Generation]:
    by_role: dict[str | None, list[tuple[str, Samples]]] = defaultdict(list)
    for label, samples in bound_samples(processes):
        by_role[samples.role].append((label, samples))
    return [
        Generation(
            role,
            total_curve([samples.curve() for _, samples in those]),
            [label for label, _ in those],
            len(those),
            samples=[samples for _, samples in those],
        )
        for role, those in by_role.items()
    ]
