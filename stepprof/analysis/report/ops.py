"""Sum up operators and kernels by name: calls, time and self time.

The self time of an operator excludes the operators that it calls; a kernel calls none. A digest
contains the costliest names of its source and the sum of all, so shares refer to everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.intervals import Indices, Times, self_times
from stepprof.analysis.report.schema import Op, ProcessTime
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Slices

MOST_NAMES = 300
"""The number of names of a source in its digest, by self time. Tables show fewer."""
MOST_OPS = 100
MOST_PROCESSES = 64


class OpTime(msgspec.Struct, frozen=True, array_like=True):
    """One name in one source; nanoseconds."""

    name: str
    calls: int
    total: int
    own: int


class OpTable(msgspec.Struct, frozen=True):
    """The costliest names of one source, and the self time of all of them."""

    times: list[OpTime] = []
    own: int = 0


def op_self_times(slices: Slices, ops: Indices, regions: Indices) -> Times:
    """Return the self time of each operator: without the operators and regions inside it."""
    threads = distinct(slices.track[ops])
    inside = regions[np.isin(slices.track[regions], threads)]
    which = np.concatenate((ops, inside)) if len(inside) else ops
    return self_times(slices.track[which], slices.start[which], slices.duration[which])[: len(ops)]


def op_table(names: list[str], name: npt.NDArray[np.int32], duration: Times, own: Times) -> OpTable:
    """Return the operators of one source, or its kernels and copies, with their self times."""
    calls = np.bincount(name, minlength=len(names))
    totals = np.bincount(name, weights=duration, minlength=len(names))
    owns = np.bincount(name, weights=own, minlength=len(names))
    there = np.flatnonzero(calls)
    order = there[np.lexsort((-totals[there], -owns[there]))][:MOST_NAMES]
    times = [OpTime(names[at], int(calls[at]), int(totals[at]), int(owns[at])) for at in order.tolist()]
    return OpTable(times, int(own.sum()))


def merge_ops(tables: Iterable[tuple[str, OpTable]], kind: str) -> list[Op]:
    """Return the costliest names over all sources, by self time.

    Args:
        tables: the process's label and its table; a process may come several times.
        kind: ``op`` or ``kernel``.
    """
    by_name: dict[str, dict[str, list[int]]] = defaultdict(dict)
    everything = 0
    for label, table in tables:
        everything += table.own
        for time in table.times:
            sums = by_name[time.name].setdefault(label, [0, 0, 0])
            sums[0] += time.calls
            sums[1] += time.total
            sums[2] += time.own
    ops = []
    for name, processes in by_name.items():
        per_process = [ProcessTime(label, own / 1e9, calls) for label, (calls, _, own) in processes.items()]
        per_process.sort(key=lambda time: -time.seconds)
        own = sum(sums[2] for sums in processes.values())
        ops.append(
            Op(
                name=name,
                kind=kind,
                calls=sum(sums[0] for sums in processes.values()),
                seconds=sum(sums[1] for sums in processes.values()) / 1e9,
                self_seconds=own / 1e9,
                share=own / everything if everything else 0.0,
                per_process=per_process[:MOST_PROCESSES],
            )
        )
    ops.sort(key=lambda op: (-op.self_seconds, -op.seconds, op.name))
    return ops[:MOST_OPS]
