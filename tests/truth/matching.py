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

    Must: every member recorded the call, on clocks that were compared, and the calls are either numbered (NCCL's) or
    all of one group (gloo's state neither group nor number; then every member must have recorded all of them).
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
    """How long one rank waited in the calls of one phase: for each rank the minimum and the maximum, in nanoseconds."""

    calls: int = 0
    total: int = 0
    """Without what the recording caused."""
    at_least: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    at_most: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    close: int = 0
    """How far the clocks make that uncertain."""


def replayed(truth: Truth, known: Sequence[Known], must: set[int]) -> bool:
    """Whether what the recording caused of waits is decided by the data.

    It is where the recording held nobody, or where every call of the step is matched and synchronises. In a call with a
    root, a rank that did not wait may still have needed another one: what would have been without the recording then
    depends on what no trace says.
    """
    if truth.shape.profiler == "none":
        return True
    seen = {id(call) for each in known for call in each.calls}
    return seen <= must and len(seen) == len(truth.calls) and all(call.synchronises for call in truth.calls)


def alone(call: Call, known: Known) -> bool:
    """Whether a call is of a group of one member, and does not say so."""
    return len(call.group.ranks) == 1 and not known.process.devices


def sides_of(
    calls: Mapping[int, Call], known: Sequence[Known], must: Collection[int], *, decided: bool
) -> dict[tuple[str, str], dict[int | str, Sides]]:
    """Who waited for whom, by role and innermost region (empty: in none) and by rank.

    A call of gloo's in a group of one member states no group: where it overlaps such calls of other ranks, the report may
    take them for one call of a larger group. A wait in it can then be stated, of at most its own duration.
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
            # what computation hides is no waiting
            wait = total(minus([(begins, end - call.profiler[rank])], computing[rank]))
            sides.total += wait
            ended = call.arrive[rank] + call.waited[rank]
            # the clocks cannot distinguish the last one from those that came as late within their
            # error
            unclear = error - call.blur if call.synchronises else error
            late = {other for other, at in call.arrive.items() if abs(at - ended) <= unclear}
            named = set(call.needed[rank]) | late
            if not decided:  # then it may be anyone who came later
                named |= {other for other in call.arrive if call.arrive[other] > call.arrive[rank]}
                wait = total(minus([(begins, end)], computing[rank]))
            if alone(call, by_rank[rank]):
                named, wait = set(by_rank), call.leave[rank] - call.arrive[rank]
            for other in named - {rank, "driver"}:
                sides.at_most[int(other)] += wait + error
            # it may go unnamed: whom a rank needed in a call with a root is in no trace, and where the recording held the
            # last one up, the one that would have been last without that may have come before this rank
            if call.synchronises and call.needed[rank] and len(named) == 1 and rank not in named:
                sides.at_least[int(next(iter(named)))] += (
                    max(wait - error, 0) if decided and number in must else 0
                )
    return found
