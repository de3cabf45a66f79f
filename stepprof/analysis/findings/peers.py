"""Measure a rank by the others: by which ones, and when each did its own work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from stepprof.analysis.findings.facts import Facts, Part, place_of
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.own_numbers import Key
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.timelines import Timeline


def peers_of(facts: Facts, label: str, role: str | None) -> list[str]:
    """Return the other ranks that have windows of a role."""

    def is_rank(each: Timeline) -> bool:
        return each.process.kind == "rank" and isinstance(each.process.origin.rank, int)

    if not is_rank(facts.timelines[label]):
        return []
    return [
        other
        for other, each in facts.timelines.items()
        if other != label and is_rank(each) and role in each.process.roles
    ]


def is_comparable(ledger: Ledger, part: Part, label: str) -> bool:
    """Return whether another process measures this one: it did its work to the end, and the ends, the collectives and what
    other findings explain are known equally well of both.
    """
    facts = ledger.facts
    place = place_of(facts, label, part.role, part.region)
    if part.role in facts.timelines[label].process.cut_short() or (place is not None and place.failed):
        return False
    mine, other = facts.timelines[part.process], facts.timelines[label]
    if mine.shows_regions != other.shows_regions:
        return False
    for each in (mine, other):
        if not each.process.is_followed or any(role == part.role for role, _ in each.process.open_ended()):
            return False
    if mine.process.is_whole and other.process.is_whole:
        return True
    explained = (
        ledger.explained.get(each, EMPTY) & facts.inside(each, part).when for each in (part.process, label)
    )
    return not len(in_calls(mine) | in_calls(other)) and not any(map(len, explained))


def own_work(ledger: Ledger, *, possible: bool = False) -> dict[str, dict[Key, Intervals]]:
    """Return for each process when it did its own work in each region: no waits, no collectives, no profiler,
    and nothing that another finding explains.

    Where ranks leave a region together, an early one was not slow in it: it waited there, or all worked until a common time.
    `possible`: what was or may have been its work there counts too.
    """
    found: dict[str, dict[Key, Intervals]] = {}
    for label, each in ledger.facts.timelines.items():
        parts: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        for start, end, role, region in each.stretches:
            parts[role, region].append((start, end))
        common = each.common
        if possible:
            common = common - each.computing - Intervals.of(link[:2] for link in (*each.maybe, *each.apart))
        stood = in_calls(each) | common | each.held | ledger.explained.get(label, EMPTY)
        found[label] = {key: Intervals.of(pairs) - stood for key, pairs in parts.items()}
    return found


def in_calls(timeline: Timeline) -> Intervals:
    """Return when a process was in collectives and computed nothing."""
    return timeline.communicating | timeline.unmatched | timeline.waiting


def measured_by(mine: int, others: Mapping[str, int]) -> tuple[float, list[str]]:
    """Return how long others take in a place, and which ones show it: all by their median, or the faster half.

    If the slower half takes about as long as the rank itself, the median is a time between the two that no rank takes.

    >>> measured_by(90, {"rank 0": 30, "rank 1": 88}), measured_by(90, {"rank 0": 30, "rank 1": 34})
    ((30, ['rank 0']), (32.0, ['rank 0', 'rank 1']))
    """
    ordered = sorted(others, key=lambda label: others[label])
    half = len(ordered) // 2
    if half and len(ordered) % 2 == 0:
        low, high = (others[label] for label in ordered[half - 1 : half + 1])
        if mine - low < 2 * (high - low) < 4 * (mine - low):
            return low, ordered[:half]
    return median(others.values()) if others else 0, [*others]


def than_whom(measure: Sequence[str], others: Collection[str]) -> str:
    """Return by which of the others a rank is measured."""
    if len(measure) == 1:
        return measure[0]
    return (
        "the median of the others"
        if len(measure) == len(others)
        else f"{len(measure)} of the {len(others)} others"
    )
