"""Choose the threads that a step is followed on: the one with the longest windows, and those that work while it waits for them."""

from __future__ import annotations

from stepprof.analysis.report.intervals import EMPTY, Indices
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source

LEAST_APART = 0.99
"""A further thread is followed if at least this share of its roles and regions is open while none
of the threads followed so far is in one.
"""


def followed_threads(source: Source, chosen: Chosen, windows: Indices) -> tuple[list[int], int | None]:
    """Return the rows with windows that are followed, and the native id of the thread that works most on them.

    A thread whose roles and regions are open at the same time as those of another one works
    concurrently with it: they are not inside each other, and only the one with the longer windows is followed.

    Args:
        source: spans. Of a trace, all rows with windows are followed, and the thread is None: traces
            have the windows of all threads on a row of their own.
        chosen: its slices by kind.
        windows: those of the source.
    """
    track = source.slices.track
    rows: list[int] = distinct(track[windows]).tolist()
    if source.origin.kind != "spans":
        return rows, None
    threads = [row for row in rows if source.tracks[row].kind == "thread"]
    named = windows[[role is not None for role in chosen.window_roles(windows)]] if len(windows) else windows
    working = distinct(named, chosen.regions)
    work = {row: chosen.when(working[track[working] == row]) for row in threads}
    opened = {row: chosen.when(windows[track[windows] == row]).total for row in threads}
    followed = [row for row in rows if row not in work]
    taken = EMPTY
    for row in sorted(threads, key=lambda row: -opened[row]):
        if (work[row] - taken).total >= LEAST_APART * work[row].total:
            taken |= work[row]
            followed.append(row)
    ids = {row: source.tracks[row].key[1] for row in followed if row in work}
    busiest = max(ids, key=lambda row: work[row].total, default=None)
    return followed, int(ids[busiest]) if busiest is not None and ids[busiest].isdigit() else None
