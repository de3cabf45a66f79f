"""Compare the Gantt chart: every bar is a window or a region, and time that is drawn as busy was work."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

from stepprof.analysis.report.schema import GanttRow
from truth.known import Known, merged, total
from truth.model import Stretch
from truth.noting import CLOSE, Notes, key_of

__all__ = ["compare_gantt"]

Bar: TypeAlias = "tuple[int, int, str, str | None]"
"""Start and length in microseconds, name, role."""

FEW_BARS = 50
FEW_STRETCHES = 250


def compare_gantt(notes: Notes, known: list[Known], start: int) -> None:
    """Compare the rows of one island, whose second 0 is `start`."""
    rows = {key_of(row.label): row for row in notes.report.gantt if row.kind == "rank"}
    for each in known:
        row = rows.get(each.rank)
        if row is None:
            notes.say(f"bars of {each.rank}", "no row", "some")
            continue
        _bars(notes, each, row, start)
        _busy(notes, each, row)


def _bars(notes: Notes, each: Known, row: GanttRow, start: int) -> None:
    parts: dict[tuple[str, str | None], list[Stretch]] = defaultdict(list)
    for role, begin, end in (*each.windows, *each.parts):
        parts[role or "step", role].append((begin, end))
    for region in each.regions:
        parts[region.name, region.role].append((each.at(region.start), each.at(region.end)))
    true = {
        (round((begin - start) / 1e3), round((end - begin) / 1e3), name, role)
        for (name, role), stretches in parts.items()
        for begin, end in merged(stretches)
    }
    shown = {
        (round(bar.start * 1e6), round(bar.seconds * 1e6), bar.name, bar.role)
        for bar in row.bars
        if bar.name != "profiler"
    }
    if extra := _only_in(shown, true):
        notes.say(f"bars of {each.rank}", sorted(map(str, extra))[:3], "none of these")
    if len(true) <= FEW_BARS and (missing := _only_in({bar for bar in true if bar[1]}, shown)):
        notes.say(f"bars of {each.rank}", "without these", sorted(map(str, missing))[:3])


def _only_in(bars: set[Bar], others: set[Bar]) -> set[Bar]:
    """Return the bars that the others lack. Rounding may shift a bar by one microsecond."""
    near = (-1, 0, 1)
    return {
        bar
        for bar in bars
        if not any((bar[0] + start, bar[1] + length, *bar[2:]) in others for start in near for length in near)
    }


def _busy(notes: Notes, each: Known, row: GanttRow) -> None:
    work = merged([*each.stretches(each.computing), *map(each.call, each.calls)])
    if len(work) <= FEW_STRETCHES:
        shown = sum(seconds for _, seconds in row.busy)
        notes.same(f"what is drawn as busy of {each.rank}", shown, total(work), CLOSE * (1 + len(work)))
