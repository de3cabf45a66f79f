"""Load an input as a source: the only way, for all writers and analyses in all processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepprof.analysis.timeline.assumed_offsets import ALL, ONE_CLOCK, assumed_for
from stepprof.analysis.timeline.find import Input
from stepprof.analysis.timeline.inflate import Limits
from stepprof.analysis.timeline.kineto import Keep, read
from stepprof.analysis.timeline.model import Alignment, Flags, Source, Times
from stepprof.analysis.timeline.raw import TraceStream
from stepprof.analysis.timeline.span_sources import read_spans_of
from stepprof.formats.npu_folder import is_database

LAUNCHES = frozenset({"ac2g", "async_npu", "async", "async_gpu"})
"""The categories of arrows from launches to kernels; the last two are of torch before 2.0."""
FARTHEST_NS = 86_400 * 10**9
"""A day. No capture is longer."""


def load(
    wanted: Input,
    *,
    args: bool | Keep,
    assume: Mapping[str, int] | None = None,
    limits: Limits | None = None,
    flows: bool | Collection[str] = True,
    evidence: bool = True,
    lines: bool = False,
    apart: bool = False,
) -> Source:
    """Read one input, and place it on the common clock.

    Args:
        wanted: the input, from `find`.
        args: whether to keep the arguments of slices and instants, or a function that selects them.
        assume: offsets to add to the times of sources [ns], as `stepprof.analysis.timeline.assumed_offsets.assumed_offsets` gives it.
        limits: limits for reading a file.
        flows: whether to read the arrows of a trace, or the categories of those to read.
        evidence: whether to read the garbage collections and stacks of a span file.
        lines: whether to read a trace by its lines where possible, without a check of the arguments.
        apart: whether a foreign trace whose times count from an unknown one is read, on a clock of its own; otherwise it is refused.

    Returns:
        The source. For a file that cannot be read it has no events and a finding; nothing is raised.
    """
    assume = assume or {}
    alignment = wanted.alignment
    named = assumed_for(wanted, assume)
    if named is not None:
        alignment = Alignment("assumed", -named, None)
    elif (ONE_CLOCK in assume or assume.get(ALL) == 0) and alignment.method == "unmeasured":
        alignment = Alignment("assumed", 0, None)
    if wanted.origin.kind == "spans":
        source = read_spans_of(
            wanted.paths,
            wanted.step,
            wanted.origin,
            alignment,
            args=bool(args),
            roles=wanted.roles,
            portion=wanted.portion,
            evidence=evidence,
        )
    else:
        path = Path(wanted.paths[0])
        stream: DatabaseStream | TraceStream = TraceStream(path, limits, lines)
        if is_database(path.name):
            from stepprof.analysis.timeline.npu_database import DatabaseStream  # with SQLite: 1 MB

            stream = DatabaseStream(path, limits)
        base = assume.get(ALL, 0 if wanted.alone else None) if named is None else named
        by_wall = replace(alignment, offset_ns=alignment.offset_ns + wanted.wall_ahead_ns)
        own, is_foreign = Alignment("unmeasured", 0, None, wanted.origin.path), wanted.origin.kind == "trace"
        unanchored = None
        if apart and is_foreign and base is None:  # by --one-clock they are relative to one time
            unanchored = alignment if alignment.method == "assumed" else own
        source = read(
            stream, wanted.origin, by_wall, args=args, base_ns=base, flows=flows, unanchored=unanchored
        )
        source.alignment = replace(
            source.alignment, offset_ns=source.alignment.offset_ns - wanted.wall_ahead_ns
        )
        if source.anchor_ns is not None:
            source.anchor_ns -= wanted.wall_ahead_ns
    return without_strays(source)


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
        source.parts(*kept),
        flows=flows.where(near(flows.start) & near(flows.end)),
        findings=[*source.findings, finding],
    )
