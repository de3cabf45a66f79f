"""Estimate clock offsets between hosts from the collectives that their ranks took part in.

No rank leaves an all-reduce before every other rank has entered it. So each matched call of ranks
on the clocks A and B bounds the offset o = clock(B) - clock(A) from both sides: start_B - end_A <=
o <= end_B - start_A. All calls together bound it to an interval.

The estimate is the median difference of the calls' ends within that interval, since ranks leave at
about the same time. The error is the larger distance to the edges of the interval. So the offset is
within the error if the calls are matched correctly. An empty interval shows that they are not.

Clocks drift: a bound is exact at the time of the call, and widens by `DRIFT` with the distance from
it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.offset_bounds import Link, offset_between

UNKNOWN_NS = 2**62
"""The end of a call that was still running when its capture ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The calls of one rank in one process group, in order; times in nanoseconds on the clock of its island."""

    kind: npt.NDArray[np.int64]
    start: Times
    end: Times
    number: npt.NDArray[np.int64] | None = None
    """The number of each call in its group, without duplicates. None: not known; then these are all
    calls of the group since a moment that is the same for all ranks.
    """
    size: int = 0
    """How many ranks the group has; 0: not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One rank and its calls."""

    island: str
    """The clock that its times are on."""
    host: str
    job: tuple[object, ...]
    """Calls of two jobs are never matched."""
    rank: int
    error_ns: int
    """The error of its times on the clock of its island."""
    first: int
    last: int
    """The period in which the estimate has to hold."""
    series: Mapping[str, Series]
    """By process group."""


@dataclass(frozen=True, slots=True)
class Move:
    """Place an island on the clock of another one: its own times minus `offset_ns`, with an error
    of `error_ns`.
    """

    island: str
    offset_ns: int
    error_ns: int
    method: str = "collectives"
    """The method of the alignment."""


@dataclass(slots=True)
class Estimate:
    """The result of `estimate`."""

    moves: dict[str, Move] = field(default_factory=dict)
    """By island. An island that is not listed is not moved."""
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """The calls of all ranks of one island in one group: the latest entry and the earliest leave of
    each.
    """

    number: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    entered: Times
    left: Times


class _Mismatch(Exception):
    """The calls of a group cannot be matched."""


def estimate(members: Sequence[Member]) -> Estimate:
    """Place islands on each other's clocks, as far as the collectives of their ranks allow.

    Islands are placed on the common clock (named ``""``) if groups connect them to it, else on the clock of one of them.
    """
    made = Estimate()
    hosts: dict[str, set[str]] = defaultdict(set)
    extents: dict[str, tuple[int, int]] = {}
    groups: dict[tuple[tuple[object, ...], str], list[Member]] = defaultdict(list)
    for member in members:
        hosts[member.island].add(member.host)
        first, last = extents.get(member.island, (member.first, member.last))
        extents[member.island] = (min(first, member.first), max(last, member.last))
        for group in member.series:
            groups[member.job, group].append(member)
    links: dict[tuple[str, str], list[Link]] = defaultdict(list)
    unmatched: list[tuple[list[str], str]] = []
    for (_, group), those in groups.items():
        islands = sorted({member.island for member in those})
        if len(islands) < 2:
            continue
        try:
            calls = _matched(those, group)
            for there in islands[1:]:
                link = _link(islands[0], there, calls[islands[0]], calls[there])
                if len(link.entered):
                    links[islands[0], there].append(link)
        except _Mismatch as problem:
            unmatched.append((islands, str(problem)))
    ways: dict[str, list[Link]] = defaultdict(list)
    for (here, there), parts in links.items():
        link = Link(
            here, there, *(np.concatenate([getattr(each, name) for each in parts]) for name in _COLUMNS)
        )
        if offset_between(link, extents[there]) is None:
            names = [", ".join(sorted(hosts[island])) for island in (here, there)]
            made.findings.append(
                f"the collectives of {names[0]} and {names[1]} cannot all be matched, or a clock was set during the step: their clocks are not compared"
            )
            continue
        ways[here].append(link)
        ways[there].append(link.turned())
    _place(ways, extents, made)
    for several, reason in unmatched:
        if len({made.moves[each].island if each in made.moves else each for each in several}) > 1:
            named = ", ".join(sorted({host for island in several for host in hosts[island]}))
            made.findings.append(
                f"the clocks of {named} cannot be estimated from their collectives: {reason}"
            )
    made.findings = list(dict.fromkeys(made.findings))
    return made


_COLUMNS = ("entered", "left", "entered_there", "left_there")


def _place(ways: Mapping[str, Sequence[Link]], extents: dict[str, tuple[int, int]], made: Estimate) -> None:
    """Follow the links from each root, those with the smallest error first."""
    order: list[tuple[str, Link | None]] = []
    reached: set[str] = set()
    for root in sorted(ways):
        queue: list[tuple[int, int, str, Link | None]] = [(0, 0, root, None)]
        while queue:
            error, _, island, link = heapq.heappop(queue)
            if island in reached:
                continue
            reached.add(island)
            order.append((island, link))
            for further in ways[island]:
                bounds = offset_between(further, extents[further.there])
                if bounds is not None and further.there not in reached:
                    heapq.heappush(
                        queue, (error + bounds[1], len(order) + len(queue), further.there, further)
                    )
    # the offset of an island has to hold for as long as the islands that are placed through it
    for island, link in reversed(order):
        if link is not None and (bounds := offset_between(link, extents[island])) is not None:
            first, last = (edge - bounds[0] for edge in extents[island])
            known = extents[link.here]
            extents[link.here] = (min(known[0], first - bounds[1]), max(known[1], last + bounds[1]))
    for island, link in order:
        if link is not None and (bounds := offset_between(link, extents[island])) is not None:
            way = made.moves.get(link.here, Move(link.here, 0, 0))
            made.moves[island] = Move(way.island, way.offset_ns + bounds[0], way.error_ns + bounds[1])


def _matched(members: Sequence[Member], group: str) -> dict[str, _Calls]:
    """Match the calls of a group; by island."""
    ranks = sorted(member.rank for member in members)
    if len(set(ranks)) != len(ranks):
        raise _Mismatch("a rank was recorded twice")
    series = [member.series[group] for member in members]
    numbers = [each.number for each in series if each.number is not None]
    if not numbers:
        if any(each.size != len(members) for each in series):
            raise _Mismatch(
                f"{len(members)} of {max(each.size for each in series)} ranks are usable; calls without numbers can only be matched if all are"
            )
        series = _in_order(series)
    elif len(numbers) < len(series):
        raise _Mismatch("some ranks number their calls, and others do not")
    by_island: dict[str, list[tuple[Member, Series]]] = defaultdict(list)
    for member, each in zip(members, series, strict=True):
        by_island[member.island].append((member, each))
    return {island: _together(parts) for island, parts in by_island.items()}


def _in_order(series: Sequence[Series]) -> list[Series]:
    """Number the calls of all ranks of a group by their order.

    Calls of one rank that overlap (of several threads) may have begun in another order on other
    ranks. So calls that overlap on any rank count as one: no rank has ended all of them before
    every rank has begun all of them. Calls that overlap on no rank have the same order on all of
    them.
    """
    first = series[0].kind
    if any(not np.array_equal(first, each.kind) for each in series[1:]):
        raise _Mismatch("the calls have no numbers, and ranks differ in their order or count")
    if not len(first):
        return [replace(each, number=np.zeros(0, np.int64)) for each in series]
    begins = np.zeros(len(first), np.bool_)
    begins[0] = True
    apart = np.ones(len(first) - 1, np.bool_)
    for each in series:
        apart &= each.start[1:] > np.maximum.accumulate(each.end)[:-1]
    begins[1:] = apart
    at = np.flatnonzero(begins)
    number = np.arange(len(at))
    return [
        Series(
            number, np.maximum.reduceat(each.start, at), np.maximum.reduceat(each.end, at), number, each.size
        )
        for each in series
    ]


def _together(parts: Sequence[tuple[Member, Series]]) -> _Calls:
    """Combine the calls of all ranks of an island."""
    number = np.concatenate([each.number for _, each in parts if each.number is not None])
    kind = np.concatenate([each.kind for _, each in parts])
    entered = np.concatenate([each.start - member.error_ns for member, each in parts])
    left = np.concatenate([each.end + member.error_ns for member, each in parts])
    order = np.argsort(number, kind="stable")
    edges = np.flatnonzero(np.diff(number[order], prepend=-1))
    if not len(edges):
        return _Calls(number, kind, entered, left)
    kinds = np.minimum.reduceat(kind[order], edges)
    if (kinds != np.maximum.reduceat(kind[order], edges)).any():
        raise _Mismatch("ranks disagree about the call with one number")
    return _Calls(
        number[order][edges],
        kinds,
        np.maximum.reduceat(entered[order], edges),
        np.minimum.reduceat(left[order], edges),
    )


def _link(here: str, there: str, one: _Calls, other: _Calls) -> Link:
    _, mine, theirs = np.intersect1d(one.number, other.number, assume_unique=True, return_indices=True)
    if (one.kind[mine] != other.kind[theirs]).any():
        raise _Mismatch("ranks disagree about the call with one number")
    known = (one.left[mine] < UNKNOWN_NS // 2) & (other.left[theirs] < UNKNOWN_NS // 2)
    mine, theirs = mine[known], theirs[known]
    return Link(here, there, one.entered[mine], one.left[mine], other.entered[theirs], other.left[theirs])
