"""Find what a trace shows of the host while its device had nothing to do: calls of the device's runtime, and launches that had not begun."""

from __future__ import annotations

import re

import msgspec
import numpy as np

from stepprof.analysis.report.intervals import EMPTY, Indices, Intervals, Moments
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Source, Times
from stepprof.analysis.timeline.tracks import RUNTIME

_COMPILES = "(dynamo_timed)"
"""Part of the names that torch's compiler gives to its phases."""
_LAUNCH = re.compile(r".*Launch.*")
_GRAPH = re.compile(r"(?:cuda|hip)(?:Graph|StreamBeginCapture)\w*")
MOST_CALLS = 12
MOST_OVERHEADS = 4
MOST_COPIES = 4
_STRETCHES = 512
MOST_STRETCHES = 4096
LATENCY_NS = 100_000
"""A kernel that begins within this time after its launch waited for nothing: a launch takes some 10 us."""
LONG_LAUNCH_NS = 1_000_000
"""A longer call does more than launch: it loads the kernel, or creates the context."""


class HostCall(msgspec.Struct, frozen=True, array_like=True):
    """All calls of one function of the runtime."""

    name: str
    count: int
    when: Moments
    """Packed intervals."""


class HostCalls(msgspec.Struct, frozen=True):
    """The calls of a process, and its launches."""

    calls: list[HostCall] = []
    """The longest ones; of launches only the long ones."""
    overheads: list[HostCall] = []
    """What the trace calls overhead: kernels that are loaded, buffers of the profiler."""
    pending: Moments = b""
    """While a kernel was launched and had not begun, for longer than `LATENCY_NS`; packed intervals."""
    connected: bool = False
    """Whether the trace connects kernels with their launches."""
    copies: list[HostCall] = []
    """Copies and fills of the device while nothing else ran on it, by their names."""
    copying: Moments = b""
    """The time of all of them; packed intervals."""
    compiling: Moments = b""
    """While torch's compiler ran; packed intervals."""
    graphs: bool = False
    """Whether it captured or launched graphs of kernels."""


def host_calls(source: Source, chosen: Chosen) -> HostCalls:
    """Return the calls and launches of a source that has a device; of any other one only when torch's compiler ran."""
    slices, flows = source.slices, source.flows
    named = np.array([_COMPILES in each for each in source.names], bool)[slices.name]
    threads = np.array([track.kind == "thread" for track in source.tracks], bool)[slices.track]
    compiler = np.flatnonzero(named & threads)
    compiling = _longest(chosen.when(compiler)).pack() if len(compiler) else b""
    if not len(chosen.device):
        return HostCalls(compiling=compiling)
    copies, copying = _copies(source, chosen)
    runtime = np.array([each in RUNTIME for each in source.categories], bool)
    which = np.flatnonzero(runtime[slices.category])
    totals = np.bincount(slices.name[which], slices.duration[which], len(source.names))
    longest = [at for at in np.argsort(-totals, kind="stable").tolist() if totals[at] > 0]
    launching = np.array([_LAUNCH.fullmatch(each) is not None for each in source.names], bool)[slices.name]
    launching &= runtime[slices.category]
    calls = _by_name(source, chosen, which[~launching[which] | (slices.duration[which] > LONG_LAUNCH_NS)])
    overhead = np.array([each == "overhead" for each in source.categories], bool)
    overheads = np.flatnonzero(overhead[slices.category])
    streams = np.array([track.kind == "stream" for track in source.tracks], bool)
    launches = np.flatnonzero(streams[flows.end_track] & ~streams[flows.start_track])
    pending = EMPTY
    if len(launches):
        begin, end = _launched(source, launches, np.flatnonzero(launching)), flows.end[launches]
        late = end - begin > LATENCY_NS
        pending = Intervals.union(begin[late], end[late]) - chosen.when(overheads)
    return HostCalls(
        calls[:MOST_CALLS],
        _by_name(source, chosen, overheads)[:MOST_OVERHEADS],
        pending.coarse(_STRETCHES)[0].pack(),
        connected=len(launches) > 0,
        copies=copies,
        copying=copying,
        compiling=compiling,
        graphs=any(_GRAPH.fullmatch(source.names[at]) for at in longest),
    )


def _by_name(source: Source, chosen: Chosen, which: Indices) -> list[HostCall]:
    """Return the calls of each function, the longest first."""
    slices = source.slices
    totals = np.bincount(slices.name[which], slices.duration[which], len(source.names))
    found: list[HostCall] = []
    for name in np.argsort(-totals, kind="stable").tolist():
        if totals[name] <= 0 or len(found) == MOST_CALLS:
            break
        mine = which[slices.name[which] == name]
        found.append(HostCall(source.names[name], len(mine), chosen.when(mine).coarse(_STRETCHES)[0].pack()))
    return found


def _launched(source: Source, arrows: Indices, calls: Indices) -> Times:
    """Return when each of some arrows left: at the end of the launching call, if it is in one."""
    slices, flows = source.slices, source.flows
    left = flows.start[arrows].copy()
    calls = calls[slices.duration[calls] > LATENCY_NS]
    calls = calls[np.argsort(slices.start[calls], kind="stable")]
    for track in distinct(slices.track[calls]).tolist():
        mine = calls[slices.track[calls] == track]
        here = np.flatnonzero(flows.start_track[arrows] == track)
        at = np.searchsorted(slices.start[mine], left[here], "right") - 1
        end = (slices.start[mine] + slices.duration[mine])[at]
        left[here] = np.where((at >= 0) & (left[here] <= end), end, left[here])
    return left


def _copies(source: Source, chosen: Chosen) -> tuple[list[HostCall], Moments]:
    """Return the copies of the device, without the time in which it computed or communicated."""
    slices = source.slices
    others = np.setdiff1d(
        chosen.device, np.concatenate((chosen.computation, chosen.communication)), assume_unique=True
    )
    if not len(others):
        return [], b""
    working = chosen.when(chosen.computation) | chosen.when(chosen.communication)
    totals = np.bincount(slices.name[others], slices.duration[others], len(source.names))
    found = []
    for name in np.argsort(-totals, kind="stable")[:MOST_COPIES].tolist():
        mine = others[slices.name[others] == name]
        if len(mine):
            found.append(
                HostCall(source.names[name], len(mine), _longest(chosen.when(mine) - working).pack())
            )
    return found, _longest(chosen.when(others) - working).pack()


def _longest(when: Intervals) -> Intervals:
    """Return the longest intervals: closing the gaps between copies would count what is between them too."""
    if len(when) <= MOST_STRETCHES:
        return when
    kept = np.sort(np.argpartition(when.start - when.end, MOST_STRETCHES)[:MOST_STRETCHES])
    return Intervals(when.start[kept], when.end[kept])
