"""From sources to processes: which traces and spans are of one process, what it is called in every table, and which windows it went through.

One process has a span file and a trace per capture; they are one by host and process id. An engine's workers, and files that nobody knows the process of, are rows of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprof.report.digest import Digest, RegionTotal, Window
from stepprof.report.intervals import EMPTY, Intervals
from stepprof.timeline import clocks
from stepprof.timeline.model import Origin
from stepprof.timeline.recorded import process_of

__all__ = ["Process", "gather", "measurable", "unsure_ns"]

_LARGEST = 2**62


@dataclass(slots=True)
class Process:
    """One process over the step, from all that is known of it."""

    label: str
    kind: str
    host: str | None
    digests: list[Digest]
    windows: list[Window] = field(default_factory=list)
    told: list[Mapping[str, Any]] = field(default_factory=list)
    """Its windows in the manifest."""

    @property
    def origin(self) -> Origin:
        """Of its first source."""
        return self.digests[0].origin

    @property
    def machine(self) -> str | None:
        """What tells its machine from others: the boot, or the host's name where that is all that is known."""
        return self.origin.machine or self.host

    @property
    def regions(self) -> list[RegionTotal]:
        """From its spans, which have them all; without spans, from its traces."""
        spans = [digest for digest in self.digests if digest.origin.kind == "spans"]
        return [region for digest in spans or self.digests for region in digest.regions]

    @property
    def offset_ns(self) -> int:
        """Its own clock minus the common one."""
        return self.digests[0].alignment.offset_ns

    @property
    def error_ns(self) -> int | None:
        """How wrong its place on the common clock may be."""
        return self.digests[0].alignment.error_ns

    @property
    def roles(self) -> frozenset[str | None]:
        """Of its windows."""
        return frozenset(window.role for window in self.windows)

    def in_role(self, role: str | None) -> Intervals:
        """When it was in a window of a role."""
        return union(window for window in self.windows if window.role == role)

    def working(self) -> tuple[Intervals, Intervals, int]:
        """When it computed, when it communicated, and how many nanoseconds of gaps these two hold."""
        computing, communicating, closed = EMPTY, EMPTY, 0
        for digest in self.digests:
            if digest.work is not None:
                computing |= Intervals.unpack(digest.work.computing)
                communicating |= Intervals.unpack(digest.work.communicating)
                closed += digest.work.closed
        return computing, communicating, closed

    def generating(self) -> Intervals:
        """When an engine's worker had sequences to generate."""
        busy = EMPTY
        for digest in self.digests:
            if digest.batches is not None:
                curve = digest.batches.curve()
                at = curve.value > 0
                busy |= Intervals.union(curve.time[:-1][at], curve.time[1:][at])
        return busy


def union(windows: Iterable[Window]) -> Intervals:
    """What any of some windows covers."""
    windows = list(windows)
    return Intervals.union([window.start for window in windows], [window.end for window in windows])


def measurable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of a manifest without numbers that are none, or beyond all measure: a damaged file has them.

    >>> measurable({"role": "actor", "stall_seconds": float("nan"), "start_unix_ns": 1e300, "replica": 1})
    {'role': 'actor', 'stall_seconds': None, 'start_unix_ns': None, 'replica': 1}
    """
    return {
        key: None if isinstance(value, int | float) and not -_LARGEST < value < _LARGEST else value
        for key, value in entry.items()
    }


def unsure_ns(one: Process, other: Process) -> int | None:
    """How wrong a comparison of two processes' times may be; None: nobody knows."""
    if one is other or (one.machine is not None and one.machine == other.machine):
        return 0
    return clocks.unsure_ns(one.digests[0].alignment, other.digests[0].alignment)


def gather(digests: Sequence[Digest], windows: Sequence[Mapping[str, Any]]) -> list[Process]:
    """The processes, as people order them: the driver, ranks, engines, whatever else.

    Args:
        digests: of all sources.
        windows: of the manifests.
    """
    grouped: dict[tuple[object, ...], list[Digest]] = defaultdict(list)
    for digest in digests:
        grouped[_key(digest.origin)].append(digest)
    told: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for window in windows:
        told[_of_session(process_of(window))].append(window)
    processes = []
    for key, group in grouped.items():
        origin = group[0].origin
        process = Process("", _kind(group), origin.host, group, told=told.get(key, []))
        process.windows = _windows(process)
        processes.append(process)
    begins: dict[frozenset[str | None], int] = {}
    for process in processes:
        for each in process.windows:
            begins[process.roles] = min(each.start, begins.get(process.roles, each.start))
    processes.sort(key=lambda process: _order(process, begins.get(process.roles, 0)))
    for process in processes:
        process.label = _label(process)
    _distinguish(processes)
    return processes


def _key(origin: Origin) -> tuple[object, ...]:
    if origin.kind in ("rank", "spans"):
        return _of_session(origin.process)
    if origin.kind == "engine":
        return ("engine", origin.role, origin.replica, *origin.process)
    return ("trace", origin.path)


def _of_session(process: tuple[object, ...]) -> tuple[object, ...]:
    *process_id, rank = process
    return ("rank", rank) if process_id[-1] is None else ("process", *process_id)


def _kind(group: Sequence[Digest]) -> str:
    kinds = {digest.origin.kind for digest in group}
    return "rank" if "rank" in kinds or "spans" in kinds else group[0].origin.kind


def _windows(process: Process) -> list[Window]:
    """From its spans, else from the manifest, whose times are by its own clock."""
    windows = [window for digest in process.digests for window in digest.windows]
    if windows:
        return windows
    offset = process.offset_ns
    return [
        Window(window["role"], int(window["start_unix_ns"]) - offset, int(window["end_unix_ns"]) - offset)
        for window in process.told
        if window["start_unix_ns"] is not None and window["end_unix_ns"] is not None
    ]


def _order(process: Process, begins: int) -> tuple[object, ...]:
    """Ranks that do the same together, whoever begins first above the others."""
    origin = process.origin
    rank = origin.rank
    kinds = ("rank", "engine", "trace")
    roles = sorted(role or "" for role in process.roles) if process.kind == "rank" else [origin.role or ""]
    return (
        rank != "driver",
        kinds.index(process.kind),
        begins,
        roles,
        -1 if origin.replica is None else origin.replica,
        isinstance(rank, str),
        rank if isinstance(rank, int) else 0,
        str(rank),
        origin.path,
    )


def _label(process: Process) -> str:
    origin = process.origin
    if process.kind != "rank":
        return origin.label
    roles = {window.role for window in process.windows if window.role is not None}
    roles = roles or {digest.origin.role for digest in process.digests if digest.origin.role is not None}
    return Origin("rank", origin.path, role=roles.pop() if len(roles) == 1 else None, rank=origin.rank).label


def _distinguish(processes: Sequence[Process]) -> None:
    """Two processes of one name are told apart by host, then by process id, then by path."""
    tells: tuple[Callable[[Process], object], ...] = (
        lambda process: process.host,
        lambda process: process.origin.pid,
        lambda process: process.origin.path,
    )
    for tell in tells:
        same: dict[str, list[Process]] = defaultdict(list)
        for process in processes:
            same[process.label].append(process)
        for group in same.values():
            if len({tell(process) for process in group}) > 1:
                for process in group:
                    process.label = f"{process.label} ({tell(process)})"
