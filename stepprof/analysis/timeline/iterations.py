"""Read the forward steps of an engine, which vLLM and SGLang write as annotations, with their batch
sizes.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.columns import CounterColumns, Interned, SliceColumns
from stepprof.analysis.timeline.model import Indices, Times
from stepprof.analysis.timeline.tracks import Rows

__all__ = ["BATCH_SIZE", "Iterations", "batch_size", "lasting"]

BATCH_SIZE = "batch size"
_VLLM = re.compile(r"execute_(?:context_(\d+)\(\d+\))?_?(?:generation_(\d+)\(\d+\))?")
_SGLANG = re.compile(r"step\[[^\]]*?\bbs=(\d+)[^\]]*\]")
PAUSE_NS = 20_000_000
"""A shorter gap between two steps belongs to the scheduler. A longer one is a pause if it is also
longer than PAUSE_STEPS median steps.
"""
PAUSE_STEPS = 5
_ROW = 500


def batch_size(name: str) -> int | None:
    """Return how many requests a forward step of that name worked on; None for other names.

    >>> batch_size("execute_context_1(7)_generation_3(3)"), batch_size("step[DECODE bs=5]"), batch_size("aten::add")
    (4, 5, None)
    """
    match = _VLLM.fullmatch(name)
    if match is not None and (match[1] or match[2]):
        return int(match[1] or 0) + int(match[2] or 0)
    match = _SGLANG.fullmatch(name)
    return int(match[1]) if match is not None else None


def lasting(start: Times, end: Times) -> Times:
    """Return the end of each forward step: the start of the next one, or, before a pause, shortly
    after its own end.

    Args:
        start: of each, in order.
        end: of each.
    """
    until = np.maximum.accumulate(end) + PAUSE_NS
    goes_on = ~_pauses(start, end)
    until[:-1][goes_on] = start[1:][goes_on]
    return until


def _pauses(start: Times, end: Times) -> npt.NDArray[np.bool_]:
    """Return whether a pause follows each forward step but the last one."""
    gap = start[1:] - np.maximum.accumulate(end)[:-1]
    return gap > max(PAUSE_NS, PAUSE_STEPS * float(np.median(end - start)))


class Iterations:
    """Collects the forward steps of a trace. `finish` adds a track of them for each process, and a
    counter.
    """

    def __init__(self, names: Interned[str], categories: Interned[str], rows: Rows) -> None:
        self._names, self._categories, self._rows = names, categories, rows
        self._sizes = np.zeros(0, dtype=np.float64)
        self._found: list[tuple[Indices, Indices, Times, Times]] = []
        self.held = 0
        """The most bytes of memory that they take, including the slices and values made of them."""

    def take(self, name: Indices, track: Indices, start: Times, duration: Times) -> None:
        """Collect forward steps among complete events."""
        known = len(self._sizes)
        if len(self._names) > known:
            new = [batch_size(text) for text in self._names.since(known)]
            sizes = [np.nan if size is None else float(size) for size in new]
            self._sizes = np.concatenate((self._sizes, np.array(sizes, dtype=np.float64)))
        here = np.flatnonzero(~np.isnan(self._sizes[name]))
        if len(here):
            self.held += _ROW * len(here)
            self._found.append((name[here], track[here], start[here], duration[here]))

    def finish(self, slices: SliceColumns, counters: CounterColumns) -> None:
        """Add the collected steps. A device's copies of the annotations are ignored if the process
        has its own.
        """
        if not self._found or any(key[0] == "stated" for key in self._rows.keys):
            return  # a timeline of stepprof contains them already
        name, track, start, duration = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        keys = list(self._rows.keys)
        kind = np.array([key[0] == "thread" for key in keys])
        if kind[track].any():
            own = kind[track]
            name, track, start, duration = name[own], track[own], start[own], duration[own]
        pids = [key[1] for key in keys]
        processes: Interned[int | str] = Interned()
        process = np.array([processes[pids[number]] for number in track.tolist()], dtype=np.int32)
        category = self._categories["iteration"]
        for pid, number in processes.items():
            of = np.flatnonzero(process == number)
            of = of[np.argsort(start[of], kind="stable")]
            row = self._rows.keys["iterations", pid, "iterations"]
            constant = np.full(len(of), row, dtype=np.int32)
            slices.add(
                start[of], duration[of], name[of], np.full(len(of), category, dtype=np.int32), constant
            )
            self._count(start[of], start[of] + duration[of], self._sizes[name[of]], pid, counters)

    def _count(
        self,
        start: Times,
        end: Times,
        size: npt.NDArray[np.float64],
        pid: int | str,
        counters: CounterColumns,
    ) -> None:
        """Add each step's batch size at its start, and 0 at the start of a pause and after the last
        step.
        """
        latest = np.maximum.accumulate(end)
        pause = _pauses(start, end)
        zeros = np.concatenate((latest[:-1][pause], latest[-1:]))
        times = np.concatenate((start, zeros))
        values = np.concatenate((size, np.zeros(len(zeros))))
        order = np.argsort(times, kind="stable")
        track = self._rows.keys["counter", pid, BATCH_SIZE]
        counters.add(times[order], values[order], np.full(len(order), track, dtype=np.int32))
