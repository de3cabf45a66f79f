"""Build the rows of the Gantt chart, and pack their bars for the page.

A row shows a process over the step: its windows above the regions inside them, and when its device
or its threads worked. Columns of integers are a tenth of the size of the same bars in JSON, and the
page draws them without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process, union
from stepprof.analysis.report.schema import Bar, GanttRow

MOST_ROW_BARS = 24_000
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
    most = min(max(MOST_ROW_BARS // max(len(processes), 1), FEWEST_BARS), 1000)
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
    shown = [
        (max(begin, start), end, name, role)
        for begin, end, name, role in (*found[:windows], *regions)
        if end >= start
    ]
    for begin, end, name, role in sorted(shown, key=lambda bar: (bar[0], -bar[1])):
        while lanes and lanes[-1] <= begin:
            lanes.pop()
        bars.append(Bar((begin - start) / 1e9, (end - begin) / 1e9, name, role, len(lanes)))
        lanes.append(end)
    return bars


Columns = list[tuple[str, npt.NDArray[np.uint32]]]

MOST_BARS = 200_000
"""More bars cannot be seen and make the page too heavy. The shortest are left out, and the page
states how many.
"""
MOST_STRETCHES = 120_000
_FINEST = 1e-6  # seconds
_LONGEST_NAME = 300


def pack_gantt(rows: Sequence[GanttRow], seconds: float) -> tuple[dict[str, object], Columns]:
    """Return the rows for the page, and the columns of all their bars and busy intervals, row after
    row.

    Args:
        rows: the processes.
        seconds: length of the step. It determines the unit of time, which is at least a microsecond.

    Returns:
        A JSON-able table: ``tick`` (seconds per unit), ``names``, ``roles``, ``rows`` (each with the number of its ``bars`` per depth and of its ``busy`` intervals), ``left_out``; and
        the columns start, length, name (into ``names``), role (into ``roles``), busy_start, busy_length.
    """
    all_bars = [bar for row in rows for bar in row.bars]
    all_busy = [stretch for row in rows for stretch in row.busy]
    ends = [bar.start + bar.seconds for bar in all_bars] + [start + length for start, length in all_busy]
    reach = max([seconds, *ends])
    earliest = min([0.0, *(bar.start for bar in all_bars), *(start for start, _ in all_busy)])
    tick = max(_FINEST, (reach - earliest) / 2**31)
    names: dict[str, int] = {}
    roles: dict[str | None, int] = {}
    shortest = _shortest_kept([bar.seconds for bar in all_bars], MOST_BARS)
    shortest_busy = _shortest_kept([length for _, length in all_busy], MOST_STRETCHES)
    starts, lengths, name_of, role_of, busy_starts, busy_lengths = [], [], [], [], [], []
    described = []
    left_out = 0
    for row in rows:
        bars = sorted(
            (bar for bar in row.bars if bar.seconds >= shortest), key=lambda bar: (bar.depth, bar.start)
        )
        left_out += len(row.bars) - len(bars)
        lanes = [0] * (1 + max((bar.depth for bar in bars), default=-1))
        for bar in bars:
            lanes[bar.depth] += 1
            starts.append((bar.start - earliest) / tick)
            lengths.append(bar.seconds / tick)
            name_of.append(names.setdefault(bar.name[:_LONGEST_NAME], len(names)))
            role_of.append(roles.setdefault(bar.role, len(roles)))
        busy = sorted(stretch for stretch in row.busy if stretch[1] >= shortest_busy)
        busy_starts += [(start - earliest) / tick for start, _ in busy]
        busy_lengths += [length / tick for _, length in busy]
        described.append(
            {"label": row.label, "host": row.host, "kind": row.kind, "lanes": lanes, "busy": len(busy)}
        )
    table = {
        "tick": tick,
        "origin": earliest,
        "names": list(names),
        "roles": list(roles),
        "rows": described,
        "left_out": left_out,
    }
    columns: Columns = [
        ("start", _ticks(starts)),
        ("length", _ticks(lengths)),
        ("name", np.asarray(name_of, np.uint32)),
        ("role", np.asarray(role_of, np.uint32)),
        ("busy_start", _ticks(busy_starts)),
        ("busy_length", _ticks(busy_lengths)),
    ]
    return table, columns


def _ticks(values: list[float]) -> npt.NDArray[np.uint32]:
    return np.rint(np.asarray(values, np.float64)).astype(np.uint32)


def _shortest_kept(lengths: list[float], most: int) -> float:
    """Return the length below which bars are left out so that about `most` remain; 0 if all may
    remain.
    """
    if len(lengths) <= most:
        return 0.0
    return float(np.nextafter(np.partition(np.asarray(lengths), -most - 1)[-most - 1], np.inf))
