"""Order matched collectives as the processes called them.

A process makes one call after another, and its own clock shows their order. The clocks of several
hosts may differ by more than the time between two collectives, and threads leave a collective at
different times. Then the ends of two collectives appear in the wrong order. So collectives are
ordered by their ends, unless the calls of a process show another order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.wait_attribution import Settled

__all__ = ["order_of"]

MOST_PASSES = 100
"""Each pass corrects one process. Only the calls of damaged traces contradict each other forever."""


def order_of(settled: Sequence[Settled]) -> npt.NDArray[np.intp]:
    """Return the numbers of all collectives in order; they are numbered by `Settled`, then by column."""
    end = np.concatenate([np.zeros(0, np.int64), *(each.end.max(axis=0) for each in settled)])
    processes = _calls_by_process(settled)
    key = end.copy()
    place = np.empty(len(end), np.intp)
    for _ in range(MOST_PASSES):
        order = np.lexsort((end, key))
        place[order] = np.arange(len(order))
        changed = False
        for number, ended in processes:
            latest = np.maximum.accumulate(place[number])[ended - 1]
            wrong = (ended > 0) & (latest > place[number])
            if wrong.any():
                key[number[wrong]] = np.maximum(key[number[wrong]], key[order[latest[wrong]]] + 1)
                changed = True
        if not changed:
            break
    return order


def _calls_by_process(
    settled: Sequence[Settled],
) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Return the collectives of each process by their ends on its clock.

    The second array states how many of these had ended before each one began.
    """
    parts: dict[int, list[tuple[npt.NDArray[np.intp], Times, Times]]] = defaultdict(list)
    first = 0
    for each in settled:
        number = np.arange(first, first + each.start.shape[1])
        first += len(number)
        for row, at in enumerate(each.matched.members):
            parts[at].append((number, each.start[row], each.end[row]))
    found = []
    for columns in parts.values():
        number, start, end = (np.concatenate(column) for column in zip(*columns, strict=True))
        by_end = np.lexsort((start, end))
        ended = np.searchsorted(end[by_end], start[by_end], side="right")
        found.append((number[by_end], np.minimum(ended, np.arange(len(ended)))))
    return found
