"""Sum up the spans of steps of one process: how often each name was entered, and the time in it and in nothing inside it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median

from stepprof.analysis.report.visits import StepWindow, later_visits
from stepprof.run.span_lines import parse_span, span_lines

Kinds = tuple[str, ...]
"""The kinds of names (`kind_of`) of the regions and roles around a moment on one thread or coroutine, the outermost first."""
_Row = tuple[int, int, int, str, "str | None", bool]
"""The number of its thread or coroutine, start, minus the duration, name, role, and whether it is a window."""

LEAST_ADDED = 0.75
"""A name stands for additional work if the others spend this share of its time neither there nor anywhere else."""


@dataclass(slots=True)
class StepTimes:
    """One step of a process."""

    total: Counter[tuple[str | None, str]] = field(default_factory=Counter)
    """Nanoseconds in each region, by the role of the innermost window."""
    own: Counter[Kinds] = field(default_factory=Counter)
    """Nanoseconds by the regions and roles around, without those in regions and windows inside them."""
    calls: Counter[Kinds] = field(default_factory=Counter)
    """The number of regions and windows, by the names around them and their own."""
    kinds: Counter[str] = field(default_factory=Counter)
    """The number of regions and windows of each kind of name."""


@lru_cache(maxsize=1 << 14)
def kind_of(name: str) -> str:
    """Return a name without its numbers, so that names that count something are equal.

    >>> kind_of("rollout_5"), kind_of("shard-00017.parquet"), kind_of("sample/3f2a9c10-77aa"), kind_of("generate")
    ('rollout_#', 'shard-#.parquet', 'sample/#-#', 'generate')
    """
    return re.sub(r"[^\W_]*\d[^\W_]*", "#", name)


def kinds_of(region: tuple[str, ...]) -> Kinds:
    """Return the kinds of the names of a region and of those around it."""
    return tuple(map(kind_of, region))


def step_times(files: Iterable[Path], steps: Collection[int]) -> dict[int, StepTimes]:
    """Return the times of some steps of a process, without numbers that it used for several steps."""
    rows: dict[int, list[_Row]] = defaultdict(list)
    windows: list[StepWindow] = []
    same: dict[str, str] = {}  # equal names are one object
    lanes: dict[tuple[object, object], int] = {}
    for line in (line for file in files for line in span_lines(file, steps)):
        span = parse_span(line)
        if span is None or span.get("step") not in steps or span.get("kind") not in ("region", "window"):
            continue
        step = span["step"]
        start, length, role, name = (
            span.get("start", 0),
            span.get("dur", 0),
            span.get("role"),
            span.get("name", ""),
        )
        is_window, lane = span["kind"] == "window", (span.get("thread"), span.get("task"))
        number = lanes.setdefault(lane, len(lanes))
        rows[step].append((number, start, -length, same.setdefault(name, name), role, is_window))
        if is_window:
            windows.append((start, start + length, step, role))
    several = later_visits(sorted(windows, key=itemgetter(0, 1)))
    return {step: _times(of) for step, of in rows.items() if step not in several}


def _times(rows: list[_Row]) -> StepTimes:
    found = StepTimes()
    rows.reverse()  # they are in the order of the ends: of two that have the same times, the later one is outside
    for _, lane in groupby(sorted(rows, key=itemgetter(0, 1, 2)), key=itemgetter(0)):
        opened: list[tuple[int, list[tuple[str | None, str]], Kinds]] = []
        for _, start, negative, name, role, is_window in lane:
            end = start - negative
            # what ends before this one does is not around it
            while opened and opened[-1][0] < max(end, start + 1):
                opened.pop()
            _, keys, kinds = opened[-1] if opened else (0, [], ())
            if opened:
                found.own[kinds] += negative
                for key in keys:
                    found.total[key] += negative
            shown = role if is_window else name
            regions = {region for _, region in keys} | (set() if shown is None else {shown})
            keys = [(role, region) for region in regions]
            if shown is not None:
                kinds = (*kinds, kind_of(shown))
                found.calls[kinds] += 1
                found.kinds[kinds[-1]] += 1
            found.own[kinds] -= negative
            for key in keys:
                found.total[key] -= negative
            opened.append((end, keys, kinds))
    return found


def adds_work(this: StepTimes, others: Collection[StepTimes], kind: str) -> bool:
    """Return whether regions of a kind of name are work that other steps without such a name do not have.

    The name alone does not show it: a step that is not recorded may do the same under another name, or under none. Then
    it has the same regions inside, or the time is in what is around.

    Args:
        this: the step with the name.
        others: the steps without it; at least one.
        kind: of the name.
    """
    steps = Counter(name for other in others for name in other.kinds)
    common = {name for name, number in steps.items() if number >= len(others) / 2}
    outside: Counter[str | None] = Counter()
    inside: Counter[str] = Counter()
    for kinds, spent in this.own.items():
        if kind in kinds:
            at = kinds.index(kind)
            inner = _last(kinds[at + 1 :], common)
            if inner is None:
                outside[_last(kinds[:at], common)] += spent
            else:
                inside[inner] += spent
    calls: Counter[str] = Counter()
    for kinds, number in this.calls.items():
        if kind in kinds[:-1]:
            calls[kinds[-1]] += number
    added = 0.0
    for inner, spent in inside.items():
        more = this.kinds[inner] - median(other.kinds[inner] for other in others)
        added += spent * min(max(more / calls[inner], 0.0), 1.0)
    totals = [_by_common(each, common) for each in (this, *others)]
    for around, spent in outside.items():
        mine, *theirs = (total[around] for total in totals)
        added += min(spent, max(mine - median(theirs), 0.0))
    return added >= LEAST_ADDED * (outside.total() + inside.total())


def _by_common(step: StepTimes, common: Collection[str]) -> Counter[str | None]:
    """Return the time of a step by the innermost name that is common."""
    found: Counter[str | None] = Counter()
    for kinds, spent in step.own.items():
        found[_last(kinds, common)] += spent
    return found


def _last(kinds: Kinds, common: Collection[str]) -> str | None:
    return next((kind for kind in reversed(kinds) if kind in common), None)
