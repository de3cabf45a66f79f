"""Reduce a source to the data that the report needs: from millions of events to some kilobytes.

A digest is made by the process that reads the trace (a worker, also on another host), and combined
with others into the report. Sums are exact. Sets of intervals are reduced to a limited number of
intervals by closing their narrowest gaps; the total of the closed gaps is stated.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.clipping import sound, within
from stepprof.analysis.report.collectives import Calls
from stepprof.analysis.report.engine_work import Batches, batches_of
from stepprof.analysis.report.host_calls import HostCalls, host_calls
from stepprof.analysis.report.intervals import Indices, Intervals, Moment, Moments, Times
from stepprof.analysis.report.nesting import Nest, attributes_of, ended_early, nest_of
from stepprof.analysis.report.ops import OpTable, op_self_times, op_table
from stepprof.analysis.report.outlasting import within_windows
from stepprof.analysis.report.process_groups import Issued, configured_groups, groups_of, issued
from stepprof.analysis.report.region_calls import regions_around
from stepprof.analysis.report.region_tree import RegionTree, tree_of
from stepprof.analysis.report.requests import requests_of
from stepprof.analysis.report.rollout import Samples, collect_samples
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.iterations import BATCH_SIZE
from stepprof.analysis.timeline.model import Alignment, Origin, Source
from stepprof.analysis.timeline.profiler_steps import MarkedStep

MOST_STRETCHES = 4096
REGION_STRETCHES = 64
MOST_REGIONS = 500
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|MallocHost|HostMalloc|FreeHost|HostFree)|cuMem(?:Create|Map|Unmap|Release|SetAccess)|aclrt(?:Malloc|Free)"
)
"""Calls that take memory from a device's driver, or give it back. The framework's allocator makes them when its cache has no free block."""
_TAKES = re.compile(r"(?:cuda|hip)Malloc(?:Async|FromPoolAsync)?|cuMem(?:Create|Map)|aclrtMalloc\w*")
"""Those of them that take memory of the device."""
_MEMORY = re.compile(r"memory (allocated|reserved) (.+)")


class Window(msgspec.Struct, frozen=True, array_like=True):
    """One window of ``profile_step``; nanoseconds on the common clock."""

    role: str | None
    start: Moment
    end: Moment
    ends: bool = True
    """Whether `end` is the window's end. False: its capture ended then, and the window continued."""
    early: bool = False
    """Whether its body was left before its end: by an exception, SIGTERM or the end of the session."""


class RegionTotal(msgspec.Struct, frozen=True):
    """One region (or window, or annotation) of one source."""

    name: str
    role: str | None
    calls: int
    covered: int
    """Nanoseconds in which any call ran; overlapping calls count once."""
    first: Moment
    last: Moment
    """Start of the first call, end of the last one."""
    when: Moments
    """Packed intervals, at most `REGION_STRETCHES`."""
    window: bool = False
    """Whether it is a window. A trace without spans shows a window only as far as it was captured."""


class MemoryPeak(msgspec.Struct, frozen=True, array_like=True):
    """The highest value of a counter of memory, with its `device` and kind: ``GPU 0, allocated``."""

    device: str
    peak: int
    at: Moment


class Work(msgspec.Struct, frozen=True):
    """The activity of a source's device, or of its threads if no device was traced; nanoseconds,
    packed intervals.
    """

    device: str
    """``gpu``, ``npu`` or ``cpu``."""
    number: str
    """The number of the device; empty for the threads."""
    compute: int
    communication: int
    overlapped: int
    busy: int
    computing: Moments
    """While it computed, or copied data of a device."""
    communicating: Moments
    closed: int
    """Nanoseconds of closed gaps, which the two sets of intervals above count as busy."""


class Digest(msgspec.Struct, frozen=True):
    """One source and one step."""

    origin: Origin
    alignment: Alignment
    events: int
    start: Moment | None = None
    """First start and last end of all events in the step; None if there are no events."""
    end: Moment | None = None
    windows: list[Window] = []
    regions: list[RegionTotal] = []
    nest: Nest | None = None
    tree: RegionTree | None = None
    works: list[Work] = []
    """One for each device; for a process without a device, one for its threads."""
    calls: Calls = Calls()
    issued: Issued | None = None
    """The thread that called them; None if that is not certain."""
    ops: OpTable = OpTable()
    kernels: OpTable = OpTable()
    batches: Batches | None = None
    recorded_steps: int = 0
    """Forward steps in the whole capture of an engine, including those outside of its window."""
    unclear: bool = False
    """It is not known which of these forward steps are in the engine's window."""
    samples: Samples | None = None
    memory: list[MemoryPeak] = []
    allocating: Moments = b""
    """While it asked a device's driver for memory or gave some back; packed intervals."""
    host: HostCalls = HostCalls()
    """What its host did beside the operators."""
    findings: list[str] = []
    bytes: int | None = None
    status: str | None = None
    """Its outcome in the manifest."""
    whole: bool = True
    """Whether all of the file was read. In a damaged file, the absence of an event shows nothing."""
    marked: list[MarkedStep] = []
    """The steps that torch's profiler marked in a trace that stepprof did not record."""
    marked_step: int | None = None
    """The one of them that all else is about; None: all of the trace."""
    unread: bool = False
    """The process that read it died, or memory ran out: nothing is known of the file."""


def digest(source: Source, bounds: tuple[int, int] | None = None) -> Digest:
    """Reduce a source to the data that the report needs.

    Args:
        source: as it was read. A span file includes its args, which state the role of each slice.
        bounds: of the step, in nanoseconds of the source's own clock; events outside are left
            out. None: all events are of the step.
    """
    source = sound(source)
    if bounds is not None:
        offset = source.alignment.offset_ns
        bounds = bounds[0] - offset, bounds[1] - offset
        source = within(source, *bounds)
    slices, counters = source.slices, source.counters
    columns = (*source.point_times(), slices.start, slices.start + slices.duration)
    times = [column for column in columns if len(column)]
    events = len(slices) + len(source.instants) + len(counters)
    if not times:
        return Digest(source.origin, source.alignment, events, findings=source.findings, whole=source.whole)
    chosen = Chosen(source)
    ops, device = chosen.ops, chosen.device
    own = op_self_times(slices, ops, chosen.regions)
    regions, problems = _regions(source, chosen)
    inside = within_windows(source, chosen)
    tree = tree_of(inside, chosen, own)
    if tree is not None and tree.folded:
        problems.append(
            f"{tree.folded} short or deeply nested regions count as part of the region around them in the region tree"
        )
    return Digest(
        origin=source.origin,
        alignment=source.alignment,
        events=events,
        start=min(int(column.min()) for column in times),
        end=max(int(column.max()) for column in times),
        windows=[
            Window(role, start, start + duration, early=ended_early(attributes))
            for role, start, duration, attributes in zip(
                chosen.roles(chosen.windows),
                slices.start[chosen.windows].tolist(),
                slices.duration[chosen.windows].tolist(),
                attributes_of(source, chosen.windows),
                strict=True,
            )
        ],
        regions=regions,
        nest=nest_of(inside, chosen),
        tree=tree,
        works=_works(source, chosen),
        calls=_calls(source, chosen),
        issued=issued(source, bounds),
        ops=op_table(source.names, slices.name[ops], slices.duration[ops], own),
        kernels=op_table(source.names, slices.name[device], slices.duration[device], slices.duration[device]),
        batches=batches_of(source, _counters(source, lambda name: name.endswith(BATCH_SIZE))),
        samples=_samples(source, chosen),
        memory=_memory(source),
        allocating=_allocating(source, chosen),
        host=host_calls(source, chosen),
        findings=[*source.findings, *problems],
        whole=source.whole,
    )


def _calls(source: Source, chosen: Chosen) -> Calls:
    slices, which = source.slices, chosen.calls
    args = slices.args or [None] * len(slices)
    world, rank, configured = configured_groups(source.metadata)
    return Calls.collect(
        source.names,
        slices.name[which],
        slices.start[which],
        slices.duration[which],
        reported=groups_of([args[at] for at in which.tolist()]),
        region=regions_around(source, chosen),
        world=world,
        rank=rank,
        configured=configured,
    )


def _regions(source: Source, chosen: Chosen) -> tuple[list[RegionTotal], list[str]]:
    """Return the regions by name and role, the longest first."""
    slices, which = source.slices, chosen.regions
    if not len(which):
        return [], []
    numbers: dict[str | None, int] = {}
    roles = np.array([numbers.setdefault(role, len(numbers)) for role in chosen.roles(which)], np.int64)
    key = (2 * roles + chosen.are_windows(which)) * len(source.names) + slices.name[which]
    order = np.argsort(key, kind="stable")
    which, key = which[order], key[order]
    edges = np.concatenate((np.flatnonzero(np.diff(key, prepend=-1)), [len(key)]))
    longest = np.argsort(-np.add.reduceat(slices.duration[which], edges[:-1]), kind="stable")
    spelled = list(numbers)
    totals = []
    for group in longest[:MOST_REGIONS].tolist():
        low, high = edges[group : group + 2].tolist()
        mine = which[low:high]
        start = slices.start[mine]
        end = start + slices.duration[mine]
        when = Intervals.union(start, end)
        place, name = divmod(int(key[low]), len(source.names))
        role, is_window = divmod(place, 2)
        totals.append(
            RegionTotal(
                name=source.names[name],
                role=spelled[role],
                calls=_outermost(slices.track[mine], start, end),
                covered=when.total,
                first=int(start.min()),
                last=int(end.max()),
                when=when.coarse(REGION_STRETCHES)[0].pack(),
                window=bool(is_window),
            )
        )
    totals.sort(key=lambda total: (-total.covered, total.first))
    left = len(longest) - len(totals)
    return totals, [f"{left} shorter regions with other names are omitted"] if left else []


def _outermost(track: npt.NDArray[np.int32], start: Times, end: Times) -> int:
    """Return how many calls of a region are not inside another call of it on the same track."""
    order = np.lexsort((-end, start, track))
    track, start, end = track[order], start[order], end[order]
    edges = np.flatnonzero(np.diff(track, prepend=-1))
    inside = 0
    for low, high in zip(edges.tolist(), [*edges[1:].tolist(), len(track)], strict=True):
        reach = np.maximum.accumulate(end[low:high])
        inside += int(np.count_nonzero(end[low + 1 : high] <= reach[:-1]))
    return len(track) - inside


def _works(source: Source, chosen: Chosen) -> list[Work]:
    """Return when each device computed and communicated; without a device, when the threads did."""
    if not len(chosen.device):
        computing = chosen.computing_on_threads()
        work = _work(("cpu", ""), computing, chosen.when(chosen.communication), computing)
        return [] if work is None else [work]
    kind = _device(source)
    # the rows of an NPU have the names of several processes, and are of one device
    devices = [track.key[1] if track.kind == "stream" and kind == "gpu" else "" for track in source.tracks]
    numbers = {device: at for at, device in enumerate(dict.fromkeys(devices))}
    device_of = np.array([numbers[device] for device in devices])[source.slices.track]
    there = distinct(device_of[chosen.device]).tolist()
    works = []
    for number in there:
        computation, communication, everything = (
            which[device_of[which] == number]
            for which in (chosen.computation, chosen.communication, chosen.device)
        )
        # copies too: the device is not idle meanwhile
        other = np.setdiff1d(everything, communication, assume_unique=True)
        works.append(
            _work((kind, list(numbers)[number]), *map(chosen.when, (computation, communication, other)))
        )
    return [work for work in works if work is not None]


def _work(
    device: tuple[str, str], computing: Intervals, communicating: Intervals, working: Intervals
) -> Work | None:
    """Return the activity of one device, or of the threads. `working`: everything except communication."""
    busy = working | communicating
    if not len(busy):
        return None
    coarse, closed = working.coarse(MOST_STRETCHES)
    coarse_calls, closed_calls = communicating.coarse(MOST_STRETCHES)
    return Work(
        device=device[0],
        number=device[1],
        compute=computing.total,
        communication=communicating.total,
        overlapped=(computing & communicating).total,
        busy=busy.total,
        computing=coarse.pack(),
        communicating=coarse_calls.pack(),
        closed=closed + closed_calls,
    )


def _device(source: Source) -> str:
    """Categories that only traces of an NPU have on their streams."""
    return "npu" if {"communication", "overlap analysis"}.intersection(source.categories) else "gpu"


def _samples(source: Source, chosen: Chosen) -> Samples | None:
    """Return the samples that have tracks of their own, in the role in which they spent most time.

    That role generates them; other roles only process them later.
    """
    slices, which = source.slices, chosen.on("sample")
    if not len(which):
        return None
    spent: Counter[str | None] = Counter()
    roles = chosen.roles(which)
    for role, duration in zip(roles, slices.duration[which].tolist(), strict=True):
        spent[role] += duration
    longest = spent.most_common(1)[0][0]
    which = which[np.array([role == longest for role in roles], bool)]
    return collect_samples(
        [track.name for track in source.tracks],
        source.names,
        sample=slices.track[which],
        name=slices.name[which],
        start=slices.start[which],
        duration=slices.duration[which],
        role=longest,
        requests=requests_of(source, chosen, longest),
    )


def _counters(source: Source, fits: Callable[[str], bool]) -> Indices:
    wanted = np.array([track.kind == "counter" and fits(track.name) for track in source.tracks], bool)
    return np.flatnonzero(wanted[source.counters.track]) if len(source.counters) else np.zeros(0, np.intp)


def _allocating(source: Source, chosen: Chosen) -> bytes:
    names = [number for number, name in enumerate(source.names) if _ALLOCATES.fullmatch(name)]
    # a free alone may be the first call, which prepares the device; memory of the host has an allocator of its own
    if not any(_TAKES.fullmatch(source.names[number]) for number in names):
        return b""
    when = chosen.when(np.flatnonzero(np.isin(source.slices.name, names)))
    return when.coarse(MOST_STRETCHES)[0].pack()


def _memory(source: Source) -> list[MemoryPeak]:
    """Return the peak of each counter of memory."""
    counters = source.counters
    which = _counters(source, lambda name: _MEMORY.search(name) is not None)
    peaks = []
    for track in distinct(counters.track[which]).tolist():
        mine = which[counters.track[which] == track]
        top = int(mine[np.argmax(counters.value[mine])])
        found = _MEMORY.search(source.tracks[track].name)
        if found is not None:
            name = f"{found[2]}, {found[1]}"
            peaks.append(MemoryPeak(name, int(counters.value[top]), int(counters.time[top])))
    return peaks
