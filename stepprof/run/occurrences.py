"""Separate the occurrences of a step: each visit of the training loop to its number.

A number is used again if the loop counts from 0 in each epoch, or if a job is restarted under its
run id. The manifest of the step then has windows of several visits. This module numbers the
occurrence of each fragment, in the order of time, and narrows a manifest to one occurrence.

The records of one target (a rank in a role, the engines of one driver) have a known order: by
visit, process and clock. The first of each target belongs to the first occurrence, the second to
the second. A target with fewer records is placed by time, on the clock of a machine that has all of
them. A rank that died and came back, perhaps on another machine, while another process stayed in the step has two records
of one visit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprof.errors import ConfigError
from stepprof.run.conflicts import jobs_apart

Span = tuple[int, int]
"""The start and the end of something."""


@dataclass(slots=True)
class _Unit:
    """What one target recorded in one visit of one process."""

    clock: str
    begin: int
    end: int
    fragments: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    visit: object = None
    """The process and the visit of the last window."""


def number_fragments(
    entries: Iterable[Mapping[str, Any]],
    offset_of: Callable[[Mapping[str, Any]], int] = lambda entry: 0,
    by_other_clocks: set[str] | None = None,
) -> dict[str, int]:
    """Return the number of the occurrence of each fragment: 1, 2, … in the order of time.

    Args:
        entries: windows and engines of a step, as `read_step` returns them.
        offset_of: returns how far the clock of an entry is ahead of the common one.
        by_other_clocks: receives the fragments that were placed by times of other machines.
    """
    entries = list(entries)
    timed: dict[object, list[tuple[Span, Mapping[str, Any]]]] = defaultdict(list)
    for entry in entries:
        if entry["start_unix_ns"] is not None:
            timed[_target(entry)].append((_times(entry, offset_of(entry)), entry))
    groups = jobs_apart(timed.values())
    groups[-1] |= {entry.get("job") for entry in entries}.difference(*groups)
    numbers: dict[str, int] = {}
    for jobs in groups:
        of_jobs = [entry for entry in entries if entry.get("job") in jobs]
        before = max(numbers.values(), default=0)
        found = _number_jobs(of_jobs, offset_of, by_other_clocks)
        numbers.update({fragment: before + number for fragment, number in found.items()})
    return numbers


def _target(entry: Mapping[str, Any]) -> object:
    """Return the target of an entry: a rank in a role, or the engines of one driver in a role."""
    is_engine = "replica" in entry
    return is_engine, entry.get("role"), entry.get("driver" if is_engine else "rank")


def _number_jobs(
    entries: Iterable[Mapping[str, Any]],
    offset_of: Callable[[Mapping[str, Any]], int],
    by_other_clocks: set[str] | None,
) -> dict[str, int]:
    """Number the fragments of jobs that did not overlap."""
    targets: dict[object, list[Mapping[str, Any]]] = defaultdict(list)
    untimed = []
    for entry in entries:
        if entry["start_unix_ns"] is None:
            untimed.append(entry)
        else:
            targets[_target(entry)].append(entry)
    visits = _visits([entry for of in targets.values() for entry in of], offset_of)
    records = [[*_units(of, offset_of)] for of in targets.values()]
    once = {process for of in records if len(of) == 1 for process in of[0].processes}
    again = sum(len(of) > 1 for of in _by_rank(targets, records))
    stayed = [span for (process, _), span in visits.items() if process in once] if again == 1 else []
    units = sorted((_rejoined(of, visits, once, stayed) for of in records), key=len, reverse=True)
    most = len(units[0]) if units else 1
    spans: dict[tuple[int, str | None], Span] = {}
    numbers: dict[str, int] = {}
    for of in units:
        for place, unit in enumerate(of, 1):
            seen = all((each, unit.clock) in spans for each in range(1, most + 1))
            number = place if len(of) == most else _nearest(unit, spans, unit.clock if seen else None, most)
            if by_other_clocks is not None and len(of) < most and not seen:
                by_other_clocks |= unit.fragments
            numbers.update(dict.fromkeys(unit.fragments, number))
            for clock in (unit.clock, None) if len(of) == most else ():
                begin, end = spans.get((number, clock), (unit.begin, unit.end))
                spans[number, clock] = min(begin, unit.begin), max(end, unit.end)
    processes = {entry["process"]: numbers[entry["fragment"]] for of in targets.values() for entry in of}
    numbers.update({entry["fragment"]: processes.get(entry["process"], most) for entry in untimed})
    return numbers


def _nearest(unit: _Unit, spans: Mapping[tuple[int, str | None], Span], clock: str | None, most: int) -> int:
    """Return the nearest occurrence in time, by its times on this clock; None: on all of them."""
    return min(range(1, most + 1), key=lambda number: gap(spans[number, clock], (unit.begin, unit.end)))


def split(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a manifest for each occurrence of the step, in the order of time; at least one."""
    numbers = number_fragments([*manifest["windows"], *manifest["engines"]])
    most = max(numbers.values(), default=1)
    if most == 1:
        return [dict(manifest)]

    def of(number: int) -> dict[str, Any]:
        return of_fragments(manifest, lambda fragment: numbers.get(fragment, number) == number)

    return [of(number) for number in range(1, most + 1)]


def of_fragments(manifest: Mapping[str, Any], is_wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return a manifest with the entries of some fragments, their post-step work, and their findings."""
    windows, engines = manifest["windows"], manifest["engines"]
    dropped = [entry for entry in (*windows, *engines) if not is_wanted(entry["fragment"])]
    others = {entry["fragment"] for entry in dropped}
    left = {artifact["path"] for entry in dropped for artifact in entry["artifacts"]}
    return {
        **manifest,
        "windows": [entry for entry in windows if entry["fragment"] not in others],
        "engines": [entry for entry in engines if entry["fragment"] not in others],
        "uploads": [each for each in manifest["uploads"] if each["path"] not in left],
        "findings": [each for each in manifest["findings"] if each["fragment"] not in others],
    }


def choose(count: int, wanted: int | None, step: int) -> int:
    """Return the number of the wanted occurrence; None: the last one. Raise ConfigError if there is none."""
    if wanted is None:
        return count
    if not 1 <= wanted <= count:
        raise ConfigError(
            f"--occurrence = {wanted}: step {step} was recorded {'once' if count == 1 else f'{count} times'}; did you mean {min(max(wanted, 1), count)}?"
        )
    return wanted


def occurrence_note(count: int, chosen: int, step: int) -> list[str]:
    """Return a sentence if there are other occurrences."""
    if count == 1:
        return []
    return [
        f"the number {step} was used for {count} steps of this run: this is occurrence {chosen}; --occurrence N names another"
    ]


def gap(one: Span, other: Span) -> int:
    """Return the distance of two intervals; negative if they overlap, by the overlap."""
    return max(one[0], other[0]) - min(one[1], other[1])


def _units(
    entries: Sequence[Mapping[str, Any]], offset_of: Callable[[Mapping[str, Any]], int]
) -> Iterator[_Unit]:
    """Yield the records of one target, visit by visit. Processes that recorded at the same time are
    several groups of ranks, in one visit.
    """
    unit: _Unit | None = None
    timed = [(_times(entry, offset_of(entry)), entry) for entry in entries]
    for (begin, end), entry in sorted(timed, key=lambda each: (each[0], each[1]["fragment"])):
        visit = (entry["process"], entry["visit"])
        if unit is None or (visit != unit.visit and begin > unit.end):
            if unit is not None:
                yield unit
            unit = _Unit(_clock(entry["process"]), begin, end)
        unit.visit = visit
        unit.end = max(unit.end, end)
        unit.fragments.add(entry["fragment"])
        unit.processes.add(entry["process"])
    if unit is not None:
        yield unit


def _visits(
    entries: Iterable[Mapping[str, Any]], offset_of: Callable[[Mapping[str, Any]], int]
) -> dict[tuple[str, int], Span]:
    """Return from when to when each process was in the step, by the process and its visit."""
    found: dict[tuple[str, int], Span] = {}
    for entry in entries:
        if entry["visit"] is not None:
            begin, end = _times(entry, offset_of(entry))
            known = found.get((entry["process"], entry["visit"]), (begin, end))
            found[entry["process"], entry["visit"]] = min(begin, known[0]), max(end, known[1])
    return found


def _by_rank(
    targets: Mapping[object, Sequence[Mapping[str, Any]]], records: Iterable[Sequence[_Unit]]
) -> Iterable[Sequence[_Unit]]:
    """Return the longest list of records of each rank."""
    longest: dict[object, Sequence[_Unit]] = {}
    for entries, of in zip(targets.values(), records, strict=True):
        rank = entries[0].get("rank")
        longest[rank] = max(longest.get(rank, ()), of, key=len)
    return longest.values()


def _rejoined(
    units: Iterable[_Unit],
    visits: Mapping[tuple[str, int], Span],
    once: Collection[str],
    others: Collection[Span] = (),
) -> list[_Unit]:
    """Return the records of one target, those of processes that followed each other within one visit of another process together.

    Clocks of several machines may differ by more than the time between two visits. A process of another machine shows a
    visit only if its target has one record, since in a restarted job it would have two, and if it lasted for most of the later record,
    or, if neither end is known, until that one began.

    Args:
        units: in the order of time.
        visits: of all processes.
        once: the processes of targets with one record.
        others: the visits of these, if one rank alone has several records.
    """
    found: list[_Unit] = []
    for unit in units:
        last = found[-1] if found else None
        if last is None or last.processes & unit.processes:
            found.append(unit)
            continue
        both = last.processes | unit.processes
        stayed = [
            span
            for (process, _), span in visits.items()
            if process not in both
            and (
                _clock(process) == last.clock == unit.clock
                or (process in once and _is_within(unit, span, is_lost=last.begin == last.end))
            )
        ]
        if any(_lasted(span, last, unit) for span in stayed) or _came_back(last, unit, others):
            last.end = max(last.end, unit.end)
            last.fragments |= unit.fragments
            last.processes |= unit.processes
        else:
            found.append(unit)
    return found


def _is_within(unit: _Unit, visit: Span, *, is_lost: bool) -> bool:
    """Return whether most of a record is in a visit; if it has no end, its begin, after a process that `is_lost`."""
    if unit.begin == unit.end:
        return is_lost and visit[0] <= unit.begin <= visit[1]
    return -gap(visit, (unit.begin, unit.end)) >= (unit.end - unit.begin) / 2 > 0


def _came_back(one: _Unit, other: _Unit, others: Collection[Span]) -> bool:
    """Return whether a rank was lost and came back by another clock, while all other ranks stayed in one visit that they ended.

    Which of the two records is the earlier one is not known. The one with an end is not longer than the visit.
    """
    if one.clock == other.clock or (one.begin < one.end and other.begin < other.end) or not others:
        return False
    lasted = max(one.end - one.begin, other.end - other.begin)
    return all(lasted <= end - begin and begin < end for begin, end in others)


def _lasted(visit: Span, one: _Unit, later: _Unit) -> bool:
    """Return whether a visit lasted from one record to a later one.

    Of a process that was killed only the begin is known: then the visit began nearer to it than to the later record.
    """
    if gap(visit, (later.begin, later.end)) > 0:
        return False
    if one.begin == one.end:
        return visit[0] - one.begin < later.begin - visit[0]
    return gap(visit, (one.begin, one.end)) <= 0


def _clock(process: str) -> str:
    """Return the clock of a process: the boot id of its machine, or its host."""
    return process.partition(" ")[0]


def _times(entry: Mapping[str, Any], offset: int) -> Span:
    begin, end = entry["start_unix_ns"], entry["end_unix_ns"]
    begin = int(begin) - offset
    return begin, begin if end is None else max(int(end) - offset, begin)
