"""Which calls of a step can be matched from the recording, and which rank each rank waited for in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from truth.known import Known, merged, minus, total
from truth.model import Call, Truth

__all__ = ["Sides", "alone", "matchable", "replayed", "sides_of"]


def matchable(truth: Truth, known: Sequence[Known]) -> tuple[set[int], set[int]]:
    """Return the ids of calls that must be matched, and of those that may be.

    A call must be matched if every member recorded it on clocks that were compared. It must also be
    numbered (NCCL), or all calls must be of one group. gloo's calls state neither group nor number,
    so every member must have recorded all of them.
    """
    holders: dict[int, set[int | str]] = defaultdict(set)
    islands: dict[int, set[object]] = defaultdict(set)
    calls: dict[int, Call] = {}
    for each in known:
        for call in each.calls:
            holders[id(call)].add(each.rank)
            islands[id(call)].add(each.place.island)
            calls[id(call)] = call
    numbered = truth.shape.device == "cuda"
    there = {each.rank for each in known}
    whole = all(process.fate in ("complete", "driver") for process in truth.processes)
    one_group = len(truth.groups) == 1
    must, may = set(), set()
    for number, call in calls.items():
        members = set(call.group.ranks)
        if call.pairwise or holders[number] != members or not members <= there:
            continue
        sure = len(islands[number]) == 1 and len(members) > 1
        if not numbered:
            sure = (
                sure
                and call.synchronises
                and whole
                and one_group
                and len(set(truth.shape.phases)) == len(truth.shape.phases)
            )
        (must if sure else may).add(number)
    return must, may


@dataclass
class Sides:
    """How long one rank waited in the calls of one phase: the minimum and maximum for each other
    rank, in nanoseconds.
    """

    calls: int = 0
    total: int = 0
    """The wait without the part that the recording caused."""
    at_least: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    at_most: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    close: int = 0
    """The uncertainty that the clocks cause."""


def replayed(truth: Truth, known: Sequence[Known], must: set[int]) -> bool:
    """Return whether the data shows which part of the waits the recording caused.

    It does if the recording delayed no rank, or if every call of the step is matched and
    synchronises. In a call with a root, a rank that did not wait may still have needed another one.
    Without the recording the outcome would then depend on data that no trace has.
    """
    if truth.shape.profiler == "none":
        return True
    seen = {id(call) for each in known for call in each.calls}
    return seen <= must and len(seen) == len(truth.calls) and all(call.synchronises for call in truth.calls)


def alone(call: Call, known: Known) -> bool:
    """Return whether a call belongs to a group of one member and does not state it."""
    return len(call.group.ranks) == 1 and not known.process.devices


def sides_of(
    calls: Mapping[int, Call], known: Sequence[Known], must: Collection[int], *, decided: bool
) -> dict[tuple[str, str], dict[int | str, Sides]]:
    """Return which rank waited for which, by role and innermost region (empty: none) and by rank.

    A call of gloo in a group of one member states no group. If it overlaps such calls of other
    ranks, the report may match them as one call of a larger group. The report may then state a wait
    of at most the call's own duration.
    """
    found: dict[tuple[str, str], dict[int | str, Sides]] = defaultdict(lambda: defaultdict(Sides))
    errors = {each.rank: each.place.error for each in known}
    by_rank = {each.rank: each for each in known}
    computing = {each.rank: merged(each.stretches(each.computing)) for each in known}
    for number, call in calls.items():
        for rank in call.arrive:
            region, role = by_rank[rank].around[number]
            sides = found[role, region][rank]
            error = errors.get(rank, 0) + max((errors.get(other, 0) for other in call.arrive), default=0)
            error += call.blur
            sides.calls += 1
            sides.close += error
            begins = by_rank[rank].at(call.arrive[rank])
            end = begins + call.waited[rank]
            # waiting that computation hides does not count
            wait = total(minus([(begins, end - call.profiler[rank])], computing[rank]))
            sides.total += wait
            ended = call.arrive[rank] + call.waited[rank]
            # the clocks cannot distinguish the last rank from others that entered within the error
            unclear = error - call.blur if call.synchronises else error
            late = {other for other, at in call.arrive.items() if abs(at - ended) <= unclear}
            named = set(call.needed[rank]) | late
            if not decided:  # then any rank that entered later may be the cause
                named |= {other for other in call.arrive if call.arrive[other] > call.arrive[rank]}
                wait = total(minus([(begins, end)], computing[rank]))
            if alone(call, by_rank[rank]):
                named, wait = set(by_rank), call.leave[rank] - call.arrive[rank]
            for other in named - {rank, "driver"}:
                sides.at_most[int(other)] += wait + error
            # the report may name no rank here. No trace shows which rank was needed in a call with
            # a root. If the recording delayed the last rank, the last one without recording may
            # have entered before this rank
            if call.synchronises and call.needed[rank] and len(named) == 1 and rank not in named:
                sides.at_least[int(next(iter(named)))] += (
                    max(wait - error, 0) if decided and number in must else 0
                )
    return found
