"""Remove events at impossible times. One flipped bit in a time makes a timeline of years, in which
the step cannot be found.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.model import Flows, Source, Times

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
    arrows = near(flows.start) & near(flows.end)
    return replace(
        source.parts(*kept),
        flows=Flows(
            flows.start[arrows],
            flows.start_track[arrows],
            flows.end[arrows],
            flows.end_track[arrows],
            flows.category[arrows],
        ),
        findings=[*source.findings, finding],
    )
