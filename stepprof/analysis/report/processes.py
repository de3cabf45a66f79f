"""Combine sources into processes: their traces and spans, names and windows.

A process has a span file and a trace per capture, which have the same host and process id. An
engine's workers, and files of unknown processes, have rows of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepprof.analysis.report.digest import Digest, RegionTotal, Window
from stepprof.analysis.report.host_calls import HostCalls
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.timeline import clocks
from stepprof.analysis.timeline.file_names import group_of
from stepprof.analysis.timeline.manifest_sources import process_of
from stepprof.analysis.timeline.model import Alignment, Origin
from stepprof.analysis.timeline.profiler_stalls import profiler_times
from stepprof.run.summary import engine_label

_LARGEST = 2**62
WHOLE = ("complete", "joined")
COVERS = (*WHOLE, "partial")
"""Outcomes of a capture that contains its window."""


@dataclass(slots=True)
class Process:
    """One process over the step, from all sources that describe it."""

    label: str
    kind: str
    origin: Origin
    """The origin of its first source; of a process without sources, its identity in the manifest."""
    alignment: Alignment
    """How its clock was aligned with that of its island."""
    digests: list[Digest]
    windows: list[Window] = field(default_factory=list)
    manifest_windows: list[Mapping[str, Any]] = field(default_factory=list)
    """Its windows in the manifest."""

    @property
    def host(self) -> str | None:
        """The host that it ran on."""
        return self.origin.host

    @property
    def machine(self) -> str | None:
        """The key of its machine: the boot id, or the host's name if the boot id is not known."""
        return self.origin.machine or self.host

    @property
    def island(self) -> str:
        """The clock of its times. Processes of one island can be compared in time."""
        return self.alignment.island

    @property
    def regions(self) -> list[RegionTotal]:
        """Its windows from its spans. Without spans, those of its traces, completed by the
        manifest.
        """
        spans = [digest for digest in self.digests if digest.origin.kind == "spans"]
        regions = [region for digest in spans or self.digests for region in digest.regions]
        return [region for region in regions if not (region.window and self.manifest_windows)]

    @property
    def offset_ns(self) -> int:
        """Its own clock minus that of its island."""
        return self.alignment.offset_ns

    @property
    def error_ns(self) -> int | None:
        """The error of its place on the clock of its island; None: not known."""
        return self.alignment.error_ns

    @property
    def roles(self) -> frozenset[str | None]:
        """The roles of its windows, including those without a known end."""
        return frozenset(window.role for window in self.windows) | {role for role, _ in self.open_ended()}

    @property
    def has_device(self) -> bool:
        """Return whether a device was traced."""
        return any(work.device != "cpu" for digest in self.digests for work in digest.works)

    @property
    def is_followed(self) -> bool:
        """Whether the ends of its regions are known, from spans or from captures that are whole."""
        if any(digest.origin.kind == "spans" for digest in self.digests):
            return True
        return self.is_whole or (not self.manifest_windows and all(digest.whole for digest in self.digests))

    @property
    def is_whole(self) -> bool:
        """Whether its captures contain all of its windows, from start to end."""
        short = any(
            window["capped_by"] is not None or window["status"] not in WHOLE
            for window in self.manifest_windows
        )
        return bool(self.manifest_windows) and not short and all(digest.whole for digest in self.digests)

    def open_ended(self) -> list[tuple[str | None, int]]:
        """Windows without a known end, as (role, start).

        The process died in such a window, or its capture ended earlier and it has no spans.
        """
        found = [(window.role, window.end) for window in self.windows if not window.ends]
        closed = [window for window in self.windows if window.ends]
        for window in self.manifest_windows:
            if window["start_unix_ns"] is None or window["end_unix_ns"] is not None:
                continue
            start = int(window["start_unix_ns"]) - self.offset_ns
            if not any(each.role == window["role"] and each.end > start for each in closed):
                found.append((window["role"], start))
        return found

    def cut_short(self) -> frozenset[str | None]:
        """Return the roles of its windows that ended early, or whose end is not known: by a cap, an exception, or its death."""
        raised = {window["role"] for window in self.manifest_windows if window.get("body_error")}
        return frozenset(
            {window.role for window in self.windows if window.early}
            | raised
            | {role for role, _ in self.open_ended()}
        )

    def failed(self) -> frozenset[tuple[str | None, str]]:
        """Return the regions, as (role, name), of which a call ended early."""
        nests = [digest.nest for digest in self.digests if digest.nest is not None]
        return frozenset((place.role, place.name) for nest in nests for place in nest.places if place.failed)

    def edges(self, window: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the start and the end of a window in the manifest; None: one is not known."""
        start, end = window["start_unix_ns"], window["end_unix_ns"]
        known = start is not None and end is not None
        return (int(start) - self.offset_ns, int(end) - self.offset_ns) if known else None

    def in_role(self, role: str | None) -> Intervals:
        """Return when it was in a window of a role, as far as ends are known."""
        return union(window for window in self.windows if window.role == role and window.ends)

    def working(self) -> tuple[Intervals, Intervals, int]:
        """Return when it computed and when it communicated, and the nanoseconds of closed gaps in
        these.

        That is on any of its devices, otherwise on its threads.
        """
        works = [work for digest in self.digests for work in digest.works]
        computing = Intervals.all_of(Intervals.unpack(work.computing) for work in works)
        communicating = Intervals.all_of(Intervals.unpack(work.communicating) for work in works)
        return computing, communicating, sum(work.closed for work in works)

    def generating(self) -> Intervals:
        """Return when an engine's worker had sequences to generate."""
        busy = EMPTY
        for digest in self.digests:
            if digest.batches is not None:
                curve = digest.batches.curve()
                at = curve.value > 0
                busy |= Intervals.union(curve.time[:-1][at], curve.time[1:][at])
        return busy

    def allocating(self) -> Intervals:
        """Return when it asked the driver of its device for memory, or gave some back."""
        return Intervals.all_of(Intervals.unpack(digest.allocating) for digest in self.digests)

    def host_calls(self) -> list[HostCalls]:
        """Return what its captures show of the host."""
        return [digest.host for digest in self.digests]

    def covered(self) -> Intervals:
        """Return the time that its captures cover. There, the absence of events shows that the process did
        nothing.
        """
        traces = [digest for digest in self.digests if digest.origin.kind != "spans"]
        whole = [digest for digest in traces if digest.whole and digest.start is not None]
        if self.kind != "rank" or not self.manifest_windows:
            return Intervals.all_of(Intervals.one(digest.start or 0, digest.end or 0) for digest in whole)
        paths = [digest.origin.path for digest in whole]
        return Intervals.of(
            edges
            for window in self.manifest_windows
            if window["status"] in COVERS and any(is_of(window, path) for path in paths)
            if (edges := self.edges(window)) is not None
        )

    def unseen(self) -> Intervals:
        """Return when a kernel may have run on its device that is not in its captures: one that ran when a capture ended before its
        window has no end, so what followed the last one is not known. Empty: it has no device.
        """
        if not self.has_device:
            return EMPTY
        computing, communicating, _ = self.working()
        busy = computing | communicating
        found = EMPTY
        for window in self.manifest_windows:
            edges = self.edges(window)
            if edges is not None and (window["capped_by"] is not None or window["status"] == "partial"):
                within = busy.clip(*edges)
                found |= Intervals.one(int(within.end[-1]) if len(within) else edges[0], edges[1])
        return found

    def held(self) -> Intervals:
        """Return when the profiler held the process up: before a window began and after it ended."""
        return Intervals.of(
            (begin - self.offset_ns, finish - self.offset_ns)
            for window in self.manifest_windows
            for _, begin, finish in profiler_times(window)
        )


def is_of(window: Mapping[str, Any], path: str) -> bool:
    """Return whether a window is in the capture whose trace has this path in the run."""
    if any(path.endswith(f"/{artifact['path']}") for artifact in window["artifacts"]):
        return True
    capture = window["capture"]
    stem = capture.get("stem") if isinstance(capture, dict) else None
    return isinstance(stem, str) and f"/{stem}." in path


def engine_of(origin: Origin) -> str:
    """Return the label of a worker's engine, as the manifest names it."""
    return engine_label({"role": origin.role, "replica": origin.replica, "occurrence": origin.occurrence})


def union(windows: Iterable[Window]) -> Intervals:
    """Return the union of some windows."""
    return Intervals.of((window.start, window.end) for window in windows)


def measurable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of a manifest without NaN and impossible numbers, which damaged files have.

    >>> measurable({"role": "actor", "stall_seconds": float("nan"), "start_unix_ns": 1e300, "replica": 1})
    {'role': 'actor', 'stall_seconds': None, 'start_unix_ns': None, 'replica': 1}
    """
    return {
        key: None if isinstance(value, int | float) and not -_LARGEST < value < _LARGEST else value
        for key, value in entry.items()
    }


def unsure_ns(one: Process, other: Process) -> int | None:
    """Return the error of a comparison of two processes' times; None: their clocks were never
    compared.
    """
    if one is other or (one.machine is not None and one.machine == other.machine):
        return 0
    return clocks.unsure_ns(one.alignment, other.alignment)


def largest_unsure_ns(one: Process, others: Iterable[Process]) -> int | None:
    """Return the largest error of a comparison of a process with others; None: its clock and another one were never compared."""
    errors = [unsure_ns(one, other) for other in others]
    return None if None in errors else max(each for each in errors if each is not None)


def gather(
    digests: Sequence[Digest],
    windows: Sequence[Mapping[str, Any]],
    placed: Mapping[tuple[object, ...], Alignment] | None = None,
) -> list[Process]:
    """Return the processes in this order: the driver, ranks, engines, others.

    Args:
        digests: of all sources.
        windows: of the manifests.
        placed: how the times of each process in the manifests are placed on the common clock.
    """
    grouped: dict[tuple[object, ...], list[Digest]] = defaultdict(list)
    for digest in digests:
        grouped[_key(digest.origin)].append(digest)
    manifest_windows: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for window in windows:
        manifest_windows[_of_session(process_of(window))].append(window)
    clocks = {digest.origin.machine or digest.origin.host: digest.alignment for digest in digests}
    processes = []
    for key, group in grouped.items():
        first = group[0]
        process = Process(
            "",
            _kind(group),
            first.origin,
            first.alignment,
            group,
            manifest_windows=manifest_windows.pop(key, []),
        )
        if _is_absent(process):
            continue
        process.windows = _windows(process)
        processes.append(process)
    for entries in manifest_windows.values():
        process = _without_source(entries, clocks, (placed or {}).get(process_of(entries[0])))
        process.windows = _windows(process)
        processes.append(process)
    begins: dict[frozenset[str | None], int] = {}
    for process in processes:
        roles = process.roles
        for each in process.windows:
            begins[roles] = min(each.start, begins.get(roles, each.start))
    processes.sort(key=lambda process: _order(process, begins.get(process.roles, 0)))
    for process in processes:
        process.label = _label(process)
    _distinguish(processes)
    return processes


def _is_absent(process: Process) -> bool:
    """Return whether a process took no part in the step: its spans are all of another occurrence."""
    only_spans = all(digest.origin.kind == "spans" for digest in process.digests)
    return (
        only_spans and not process.manifest_windows and not any(digest.events for digest in process.digests)
    )


def _without_source(
    entries: Sequence[Mapping[str, Any]], clocks: Mapping[str | None, Alignment], placed: Alignment | None
) -> Process:
    """Return a process that only the manifest shows: it has neither spans nor a trace."""
    window = entries[0]
    pid = window["pid"] if isinstance(window["pid"], int) else None
    role = window["role"] if len({each["role"] for each in entries}) == 1 else None
    origin = Origin(
        "rank", f"manifest/{window.get('fragment')}", role, window["rank"], None, window["host"], pid,
        machine=window.get("boot_id"), pid_namespace=window.get("pid_namespace"),
    )  # fmt: skip
    machine = origin.machine or origin.host
    unknown = Alignment("unmeasured", 0, None, f"{machine}")
    return Process(
        "", "rank", origin, clocks.get(machine) or placed or unknown, [], manifest_windows=list(entries)
    )


def _key(origin: Origin) -> tuple[object, ...]:
    if origin.kind in ("rank", "spans"):
        return _of_session(origin.process)
    if origin.kind == "engine":
        return ("engine", origin.role, origin.replica, group_of(origin.path), *origin.process)
    return ("trace", origin.path)


def _of_session(process: tuple[object, ...]) -> tuple[object, ...]:
    *process_id, rank = process
    return ("rank", rank) if process_id[-1] is None else ("process", *process_id)


def _kind(group: Sequence[Digest]) -> str:
    kinds = {digest.origin.kind for digest in group}
    return "rank" if "rank" in kinds or "spans" in kinds else group[0].origin.kind


def _windows(process: Process) -> list[Window]:
    """Return the windows from the spans, otherwise from the manifest, whose times are by the
    process's clock.

    The manifest does not know when the window of a capped capture ended.
    """
    windows = [window for digest in process.digests for window in digest.windows]
    if windows:
        return windows
    return [
        Window(window["role"], *edges, ends=window["capped_by"] is None)
        for window in process.manifest_windows
        if (edges := process.edges(window)) is not None
    ]


def _order(process: Process, begins: int) -> tuple[object, ...]:
    """Return a key to sort ranks by: those with the same roles are together, the first to start
    above the others.
    """
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
    """Return its role and rank; of a process with several roles, or with windows without a role, its rank."""
    origin = process.origin
    if process.kind != "rank":
        return origin.label
    roles = process.roles or {digest.origin.role for digest in process.digests}
    return Origin(
        "rank", origin.path, role=next(iter(roles)) if len(roles) == 1 else None, rank=origin.rank
    ).label


def _distinguish(processes: Sequence[Process]) -> None:
    """Distinguish processes of one name by host, then by process id, then by path."""
    features: tuple[Callable[[Process], object], ...] = (
        lambda process: process.host,
        lambda process: process.origin.pid,
        lambda process: process.origin.path,
    )
    for feature in features:
        same: dict[str, list[Process]] = defaultdict(list)
        for process in processes:
            same[process.label].append(process)
        for group in same.values():
            if len({feature(process) for process in group}) > 1:
                for process in group:
                    process.label = f"{process.label} ({feature(process)})"
