"""Compute the tables of a report from the truth, as plain sums over what was recorded, without code
of stepprof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from truth.known import Known, clipped, merged, minus, total
from truth.model import Engine, Stretch, Work
from truth.tracing import kernel_name

__all__ = [
    "Decoded",
    "Overlapped",
    "Phase",
    "Tail",
    "decoded",
    "kernels",
    "operators",
    "overlapped",
    "phases",
    "step_bounds",
    "tail_of",
]

Key = int | str


@dataclass
class Phase:
    """A role, or a region of one, with the time of each process in it."""

    seconds: int = 0
    covered: dict[Key, int] = field(default_factory=dict)
    calls: dict[Key, int] = field(default_factory=dict)
    first: dict[Key, int] = field(default_factory=dict)
    last: dict[Key, int] = field(default_factory=dict)


def step_bounds(known: Iterable[Known]) -> Stretch | None:
    """Return the bounds of the step, from the first window to the last. A window without a known
    end counts up to its last known part or span. Begins alone have no length.
    """
    edges = [(start, end) for each in known for _, start, end in (*each.windows, *each.parts)]
    edges += [stretch for each in known if each.spans for stretch in each.stretches(each.regions)]
    if not edges:
        return None
    first = min(start for start, _ in edges)
    return first, max(end for _, end in edges) if any(start < end for start, end in edges) else first


def phases(known: Sequence[Known]) -> dict[tuple[str, str | None], Phase]:
    """Return each role, and each region of a role, of the processes of one island."""
    parts: dict[tuple[str, str | None], dict[Key, list[Stretch]]] = defaultdict(lambda: defaultdict(list))
    for each in known:
        for role, start, end in each.windows:
            parts[role, None][each.rank].append((start, end))
        for region in each.regions:
            parts[region.role, region.name][each.rank].append((each.at(region.start), each.at(region.end)))
    open_ones = [
        part for each in known for part in each.parts
    ]  # as far as their captures or regions show them
    open_ones += [
        (region.role, each.at(region.start), each.at(region.end))
        for each in known
        if each.open
        for region in each.regions
    ]
    found = {}
    for key, by_rank in parts.items():
        of_role = [(start, end) for role, start, end in open_ones if key == (role, None)]
        phase = Phase(total([*of_role, *(part for stretches in by_rank.values() for part in stretches)]))
        for rank, stretches in by_rank.items():
            phase.covered[rank] = total(stretches)
            phase.calls[rank] = len(outermost(stretches))
            phase.first[rank] = min(start for start, _ in stretches)
            phase.last[rank] = max(end for _, end in stretches)
        found[key] = phase
    return found


def outermost(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the calls that are not inside another call of the same name."""
    return [
        one
        for at, one in enumerate(stretches)
        if not any(
            other[0] <= one[0] and one[1] <= other[1] and (other != one or number < at)
            for number, other in enumerate(stretches)
            if number != at
        )
    ]


@dataclass
class Overlapped:
    """Computation and communication on one device, or on the threads of a process without a device."""

    compute: int
    communication: int
    overlapped: int
    busy: int


def overlapped(known: Known) -> dict[str, Overlapped]:
    """Return by device (``gpu 0``, ``cpu``) how much communication is hidden by computation."""
    found = {}
    for device in range(known.process.devices) if known.device else [None]:
        kind = "op" if device is None else "kernel"
        mine = [each for each in known.work if device in (None, each.device)]
        computing = merged(known.stretches(each for each in mine if each.kind == kind))
        # NCCL's kernels run on the first device
        communicating = merged(known.call(call) for call in known.calls) if device in (None, 0) else []
        hidden = total(communicating) - total(minus(communicating, computing))
        copies = known.stretches(each for each in mine if each.kind == "copy")
        found["cpu" if device is None else f"gpu {device}"] = Overlapped(
            total(computing), total(communicating), hidden, total([*computing, *copies, *communicating])
        )
    return found


def operators(known: Sequence[Known]) -> dict[str, dict[Key, tuple[int, int, int]]]:
    """Return calls, time and self time of each operator in each process."""
    found: dict[str, dict[Key, tuple[int, int, int]]] = defaultdict(dict)
    for each in known:
        ops = [work for work in each.work if work.kind in ("op", "dispatch")]
        for at, work in enumerate(ops):
            inside = [
                other
                for place, other in enumerate(ops)
                if other is not work and _inside(other, work, later=place > at)
            ]
            own = (work.end - work.start) - total((other.start, other.end) for other in inside)
            calls, seconds, self_seconds = found[work.name].get(each.rank, (0, 0, 0))
            found[work.name][each.rank] = (
                calls + 1,
                seconds + work.end - work.start,
                self_seconds + own,
            )
    return found


def _inside(inner: Work, outer: Work, *, later: bool) -> bool:
    """Return whether an operator runs inside another one. Of two with the same times, the first one
    is the outer one.
    """
    if inner.thread != outer.thread or not (outer.start <= inner.start and inner.end <= outer.end):
        return False
    return later or (inner.start, inner.end) != (outer.start, outer.end)


def kernels(known: Sequence[Known]) -> dict[str, tuple[int, int]]:
    """Return calls and time of each kernel."""
    found: dict[str, tuple[int, int]] = {}
    for each in known:
        if not each.process.devices:
            continue
        ran = [(work.name, work.end - work.start) for work in each.work if work.kind in ("kernel", "copy")]
        for call in each.calls:
            start, end = each.call(call)
            ran.append((kernel_name(call), end - start))
        for name, length in ran:
            calls, seconds = found.get(name, (0, 0))
            found[name] = (calls + 1, seconds + length)
    return found


@dataclass
class Tail:
    """Generation: the number of sequences over time."""

    seconds: int
    peak: float
    mean: float
    below_half: float
    tail: int


@dataclass
class Decoded:
    """The forward steps of all schedulers of an engine that worked on sequences."""

    steps: int = 0
    tokens: int = 0
    time: int = 0


def decoded(engine: Engine) -> Decoded:
    """Return the sums over forward steps. Each step lasts until the next one begins, and the last
    one until it ends.
    """
    found = Decoded()
    for scheduler in engine.schedulers:
        begins = [start for start, _, _ in scheduler.steps]
        ends = [*begins[1:], *(end for _, end, _ in scheduler.steps[-1:])]
        for (start, _, size), end in zip(scheduler.steps, ends, strict=True):
            if size:
                found.steps += 1
                found.tokens += size
                found.time += end - start
    return found


def tail_of(engines: Sequence[Engine], shifts: Mapping[int, int]) -> Tail | None:
    """Return the combined batch of all schedulers of some engines over time."""
    curves = [
        [
            (start + shifts[engine.replica], end + shifts[engine.replica], size)
            for start, end, size in scheduler.steps
        ]
        for engine in engines
        for scheduler in engine.schedulers
    ]
    curves = [curve for curve in curves if curve]
    if not curves:
        return None
    edges = sorted({start for curve in curves for start, _, _ in curve} | {curve[-1][1] for curve in curves})
    sizes = []
    for low, high in pairwise(edges):
        size = 0
        for curve in curves:
            running = [batch for start, _, batch in curve if start <= low]
            size += running[-1] if running and low < curve[-1][1] else 0
        sizes.append((low, high, size))
    length = edges[-1] - edges[0]
    peak = max(size for _, _, size in sizes)
    half = [(low, high) for low, high, size in sizes if size >= peak / 2]
    return Tail(
        length,
        peak,
        sum(size * (high - low) for low, high, size in sizes) / length,
        1 - total(half) / length,
        edges[-1] - half[-1][1],
    )


def inside(stretches: Iterable[Stretch], bounds: Stretch) -> int:
    """Return the length of the union within bounds."""
    return total(clipped(stretches, *bounds))
