"""Connect kernels with their launches by the number that both state, where a trace has too few arrows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Args, Flows, Source
from stepprof.analysis.timeline.tracks import DEVICE, RUNTIME, WRITTEN

_NUMBER = re.compile(rb'"correlation"\s*:\s*(\d{1,18})\b')
ENOUGH = 0.9
"""If at least this share of the kernels has an arrow, the trace has arrows. A capture that begins with running kernels lacks some."""


def lacks_arrows(source: Source) -> bool:
    """Return whether kernels of the source lack arrows from their launches."""
    kernels = _of(source, DEVICE)
    ends = np.zeros(len(source.tracks), bool)
    ends[[at for at, track in enumerate(source.tracks) if track.kind == "stream"]] = True
    arrows = int(np.count_nonzero(ends[source.flows.end_track])) if len(source.flows) else 0
    return arrows < ENOUGH * len(kernels)


class Numbered:
    """Keeps the arguments that state these numbers while a file is read. `stepprof.analysis.timeline.load.load` takes it.

    Args:
        others: keeps other arguments.
    """

    def __init__(self, others: object) -> None:
        self._others = others

    def __call__(self, events: Sequence[Event], *names: object) -> list[Args]:
        """Return the arguments of kernels and of calls of the runtime, and those that `others` keeps."""
        kept = self._others(events, *names) if callable(self._others) else None
        return [
            bytes(event.args) or None
            if WRITTEN.get(event.cat, event.cat) in DEVICE | RUNTIME
            else kept and kept[at]
            for at, event in enumerate(events)
        ]


def with_launches(source: Source) -> Source:
    """Return the source with an arrow to each kernel that has none, from the call that states its number.

    Args:
        source: with the arguments that `Numbered` keeps.
    """
    slices, flows = source.slices, source.flows
    launches = {number: at for at, number in _numbers(source, _of(source, RUNTIME))}
    known = set(zip(flows.end_track.tolist(), flows.end.tolist(), strict=True))
    pairs = [
        (launches[number], kernel)
        for kernel, number in _numbers(source, _of(source, DEVICE))
        if number in launches and (int(slices.track[kernel]), int(slices.start[kernel])) not in known
    ]
    if not pairs:
        return source
    begin, end = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    categories = [*source.categories, "ac2g"]
    new = Flows(
        slices.start[begin],
        slices.track[begin],
        slices.start[end],
        slices.track[end],
        np.full(len(pairs), len(categories) - 1, np.int32),
    )
    joined = Flows(
        *(
            np.concatenate((getattr(flows, name), getattr(new, name)))
            for name in ("start", "start_track", "end", "end_track", "category")
        )
    )
    return replace(source, flows=joined, categories=categories)


def _of(source: Source, categories: frozenset[str]) -> npt.NDArray[np.intp]:
    return np.flatnonzero(
        np.array([each in categories for each in source.categories], bool)[source.slices.category]
    )


def _numbers(source: Source, which: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Return (slice, number) of the slices that state one."""
    args = source.slices.args or []
    found = ((at, _NUMBER.search(args[at] or b"")) for at in which.tolist()) if args else ()
    return [(at, int(number[1])) for at, number in found if number is not None]
