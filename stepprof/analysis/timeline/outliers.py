"""Remove events at impossible times. One flipped bit in a time makes a timeline of years, in which
the step cannot be found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.model import Args, Counters, Flows, Instants, Slices, Source, Times

__all__ = ["FARTHEST_NS", "without_strays"]

FARTHEST_NS = 86_400 * 10**9
"""A day. No capture is longer."""

Flags = npt.NDArray[np.bool_]


def without_strays(source: Source) -> Source:
    """Return the source without events more than `FARTHEST_NS` from its middle, and without longer
    slices.

    A finding states how many events are omitted.
    """
    slices, instants, counters, flows = source.slices, source.instants, source.counters, source.flows
    times = [each for each in (slices.start, instants.time, counters.time) if len(each)]
    if not times:
        return source
    extent = max(int(each.max()) for each in times) - min(int(each.min()) for each in times)
    if extent <= FARTHEST_NS and slices.duration.max(initial=0) <= FARTHEST_NS:
        return source
    middle = int(np.median(np.concatenate(times).astype(np.float64)))

    def near(column: Times) -> Flags:
        return (column >= middle - FARTHEST_NS) & (column <= middle + FARTHEST_NS)

    long = slices.duration > FARTHEST_NS
    kept = near(slices.start) & ~long, near(instants.time), near(counters.time)
    left = sum(int(np.count_nonzero(~each)) for each in kept)
    finding = f"{left} events lie more than a day from the others or last longer than a day: they are omitted"
    return replace(
        source,
        slices=_slices(slices, kept[0]),
        instants=Instants(
            instants.time[kept[1]],
            instants.name[kept[1]],
            instants.category[kept[1]],
            instants.track[kept[1]],
            _args(instants.args, kept[1]),
        ),
        counters=Counters(counters.time[kept[2]], counters.value[kept[2]], counters.track[kept[2]]),
        flows=_flows(flows, near(flows.start) & near(flows.end)),
        findings=[*source.findings, finding],
    )


def _slices(slices: Slices, kept: Flags) -> Slices:
    return Slices(
        slices.start[kept],
        slices.duration[kept],
        slices.name[kept],
        slices.category[kept],
        slices.track[kept],
        _args(slices.args, kept),
    )


def _flows(flows: Flows, kept: Flags) -> Flows:
    return Flows(
        flows.start[kept],
        flows.start_track[kept],
        flows.end[kept],
        flows.end_track[kept],
        flows.category[kept],
    )


def _args(args: list[Args] | None, kept: Flags) -> list[Args] | None:
    return None if args is None else [args[at] for at in np.flatnonzero(kept).tolist()]
