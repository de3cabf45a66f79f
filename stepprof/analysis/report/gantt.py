"""Build the rows of the Gantt chart.

A row shows a process over the step: its windows above the regions inside them, and when its device
or its threads worked.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process, union
from stepprof.analysis.report.schema import Bar, GanttRow

__all__ = ["gantt"]

MOST_BARS = 24_000
"""The limit for all rows."""
FEWEST_BARS = 60
"""The minimum for each row."""
BUSY_STRETCHES = 300
GENERATION = "generation"


def gantt(processes: Sequence[Process], start: int) -> list[GanttRow]:
    """One row per process.

    Args:
        processes: in the order of the rows.
        start: second 0 of the report [ns].
    """
    most = min(max(MOST_BARS // max(len(processes), 1), FEWEST_BARS), 1000)
    rows = []
    for process in processes:
        computing, communicating, _ = process.working()
        busy, _ = (computing | communicating | process.generating()).coarse(BUSY_STRETCHES)
        rows.append(
            GanttRow(
                label=process.label,
                host=process.host,
                kind=process.kind,
                bars=_bars(process, start, most),
                busy=[((begin - start) / 1e9, (end - begin) / 1e9) for begin, end in busy.pairs()],
            )
        )
    return rows


def _bars(process: Process, start: int, most: int) -> list[Bar]:
    """Return the longest intervals; overlapping calls of one region (coroutines) are one interval."""
    found: list[tuple[int, int, str, str | None]] = []
    for role in {window.role for window in process.windows}:
        when = union(window for window in process.windows if window.role == role)
        found += [(begin, end, role or "step", role) for begin, end in when.pairs()]
    windows = len(found)
    for region in process.regions:
        found += [
            (begin, end, region.name, region.role) for begin, end in Intervals.unpack(region.when).pairs()
        ]
    if process.kind == "engine":
        when = process.generating()
        found += [
            (begin, end, GENERATION, process.origin.role) for begin, end in when.coarse(most)[0].pairs()
        ]
    regions = sorted(found[windows:], key=lambda bar: bar[0] - bar[1])[: max(most - windows, 0)]
    lanes: list[int] = []
    bars = []
    for begin, end, name, role in sorted([*found[:windows], *regions], key=lambda bar: (bar[0], -bar[1])):
        while lanes and lanes[-1] <= begin:
            lanes.pop()
        bars.append(Bar((begin - start) / 1e9, (end - begin) / 1e9, name, role, len(lanes)))
        lanes.append(end)
    return bars
