"""The partition of a step that the report promises: what each process did at each moment, from the
truth.

Work comes first. Each other moment belongs to the first cause that holds. Their order is: the
profiler, waiting in a matched collective, unmatched communication, a device that waits for its
host. Then: time that was not recorded, the rollout, other ranks of the role, other roles, unknown.

The recording leaves three things open, and a figure may lie anywhere between their cases. Calls
without group or number may be matched or not. The CPU time of a thread may lie anywhere in the gaps
of its window. Operators of other threads may already show that CPU time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import product

from truth.known import Known, clipped, merged, minus, total
from truth.model import Call, Engine, Stretch

__all__ = ["Around", "Partition", "between", "generating", "handing", "partitions", "recording"]


@dataclass
class Partition:
    """The nanoseconds of one process: `busy` and the causes add up to `wall`."""

    wall: int
    busy: int = 0
    causes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Around:
    """What a process shares with the other processes of its island."""

    bounds: Stretch
    others: Sequence[Known]
    engine_roles: Collection[str]
    generating: Sequence[Stretch] = ()
    """Times in which engines had sequences to generate."""
    handed: Sequence[Stretch] = ()
    """Times in which the driver waited for engines to start and stop."""
    matched: Collection[int] = ()
    """Ids of calls that are certainly matched."""
    perhaps: Collection[int] = ()
    """Ids of calls that may be matched."""


def between(cases: Sequence[Partition], cause: str) -> tuple[int, int]:
    """Return the minimum and maximum of a cause (or of ``busy``)."""
    values = [case.busy if cause == "busy" else case.causes.get(cause, 0) for case in cases]
    return min(values), max(values)


def partitions(mine: Known, around: Around) -> list[Partition]:
    """Return how a process may have spent the step: one case for each combination that is not decided."""
    unsure = any(id(call) in around.perhaps for call in mine.calls)
    by_threads = not mine.device and any(each.thread for each in mine.work)
    partly = not mine.device and (bool(mine.open) or _own(mine, around) != merged(mine.covered))
    return [
        _partition(mine, around, matched=matched, cpu=cpu, late=late)
        for matched, cpu, late in product(
            (True, False) if unsure else (True,),
            ("own", *(("all",) if by_threads else ()), *(("none", "closed") if partly else ())),
            (True, False) if partly else (False,),
        )
    ]


def _own(mine: Known, around: Around) -> list[Stretch]:
    """Return the times of the process's own windows. Windows of engines' roles, and a window around
    all of its roles, do not count.
    """
    every = [*mine.windows, *mine.parts]
    named = [window for window in every if window[0] is not None]
    windows = [window for window in named if window[0] not in around.engine_roles] if named else every
    return merged((start, end) for _, start, end in windows)


def _partition(mine: Known, around: Around, *, matched: bool, cpu: str, late: bool) -> Partition:
    bounds = around.bounds
    made = Partition(bounds[1] - bounds[0])
    left = [bounds]

    def take(cause: str, stretches: Sequence[Stretch]) -> int:
        nonlocal left
        part = total(left) - total(minus(left, list(stretches)))
        left = minus(left, list(stretches))
        made.causes[cause] = made.causes.get(cause, 0) + part
        return part

    own = _own(mine, around)
    device = mine.device
    computing = merged(mine.stretches(mine.computing))
    known = {*around.matched, *around.perhaps} if matched else set(around.matched)
    calls = [call for call in mine.calls if id(call) in known and not call.pairwise]
    waits, caused = _waits(mine, calls)
    unmatched = [mine.call(call) for call in mine.calls if call not in calls]
    stuck = minus([*waits, *caused, *unmatched], computing)
    made.busy = take("busy", minus([*computing, *map(mine.call, calls)], stuck))
    del made.causes["busy"]
    take("profiler", [*recording(mine), *caused])
    take("collective", waits)
    take("collective_unmatched", unmatched)
    if device:
        inside, unseen = [part for a, b in mine.covered for part in clipped(own, a, b)], _unseen(mine)
        take("host", minus(inside, unseen))
        take("not_recorded", inside)
    worked = 0 if device or cpu == "none" else _by_cpu(mine, around, own, computing, left, cpu)
    covered = [part for a, b in mine.covered for part in clipped(own, a, b)]
    take("unknown", [*covered, *(own if mine.rank == "driver" else [])])  # the driver's backend is null
    take("not_recorded", [*own, *_open(mine, bounds)])
    made.busy += worked
    order = ("not_recorded", "unknown") if late else ("unknown", "not_recorded")
    for cause in order:
        part = min(worked, made.causes.get(cause, 0))
        made.causes[cause] = made.causes.get(cause, 0) - part
        worked -= part
    _outside(mine, around, take)
    return made


def _unseen(mine: Known) -> list[Stretch]:
    """Return the times after the last kernel of captures that ended before their windows."""
    busy = [*mine.stretches(mine.computing), *map(mine.call, mine.calls)]
    found = []
    for window in mine.traced:
        if window.capped_by is not None or window.status == "partial":
            start, end = mine.at(window.start), mine.at(window.captured or window.start)
            found.append((max([start, *(last for _, last in clipped(busy, start, end))]), end))
    return found


def _waits(mine: Known, calls: Sequence[Call]) -> tuple[list[Stretch], list[Stretch]]:
    """Return when the process waited in calls for another rank, and then because of the recording;
    by convention in that order.
    """
    waits, caused = [], []
    for call in calls:
        start = mine.at(call.arrive[mine.rank])
        end = start + call.waited[mine.rank]
        waits.append((start, end - call.profiler[mine.rank]))
        caused.append((end - call.profiler[mine.rank], end))
    return waits, caused


def _outside(mine: Known, around: Around, take: object) -> None:
    """Assign the causes of waiting outside the process's own windows."""
    assert callable(take)
    windows = [
        window for each in around.others for window in (*each.windows, *each.parts) if window[0] is not None
    ]
    roles = {role for role, _, _ in (*mine.windows, *mine.parts)} - set(around.engine_roles)
    take("rollout", around.generating)
    take("profiler", around.handed)
    take("rollout", [(a, b) for role, a, b in windows if role in around.engine_roles])
    take("peers", [(a, b) for role, a, b in windows if role in roles])
    take("other_role", [(a, b) for role, a, b in windows if role not in roles])
    take("unknown", [around.bounds])


def _by_cpu(
    mine: Known,
    around: Around,
    own: Sequence[Stretch],
    computing: Sequence[Stretch],
    left: Sequence[Stretch],
    cpu: str,
) -> int:
    """Return how much of the gaps in the process's windows was work, according to the CPU time of
    its threads.
    """
    used = sum(window.cpu or 0 for window in mine.process.windows if window.status not in (None, "lost"))
    main = merged(mine.stretches(each for each in mine.work if each.kind == "op" and not each.thread))
    shown = computing if cpu == "all" else main
    gaps = sum(
        total(clipped(left, start, end))
        for start, end in merged([*own, *([] if cpu == "closed" else _open(mine, around.bounds))])
    )
    return min(max(used - sum(total(clipped(shown, start, end)) for start, end in own), 0), gaps)


def _open(mine: Known, bounds: Stretch) -> list[Stretch]:
    """Return the times after the captures of windows without a known end, each until the next window."""
    found = []
    for window in mine.open:
        start = mine.at(window.start)
        later = [begin for _, begin, _ in mine.windows if begin > start]
        later += [mine.at(other.start) for other in mine.open if other.start > window.start]
        found.append((start, min([*later, bounds[1]])))
    return found


def recording(known: Known) -> list[Stretch]:
    """Return when the recording delayed the process: arm, start and stop of its captures, according
    to the manifest.
    """
    held = []
    for window in known.process.windows:
        if window.status is None or known.rank == "driver":
            continue
        held.append((known.at(window.start - window.begin - window.arm), known.at(window.start)))
        if window.status != "lost" and not window.capped_by:
            held.append((known.at(window.end), known.at(window.end + window.stall)))
    return merged(held)


def generating(engines: Sequence[Engine], shift: int) -> list[Stretch]:
    """Return when any of some engines had sequences to generate. Gaps of a scheduler between two
    steps do not count as pauses.
    """
    return merged(
        (scheduler.steps[0][0] + shift, scheduler.steps[-1][1] + shift)
        for engine in engines
        for scheduler in engine.schedulers
    )


def handing(engines: Sequence[Engine], shift: int) -> list[Stretch]:
    """Return when the driver waited for engines to start and to stop, by its clock."""
    return merged(
        part
        for engine in engines
        for part in (
            (engine.start - engine.begin + shift, engine.start + shift),
            (engine.end + shift, engine.end + engine.stop + shift),
        )
    )
