"""Build the rows of a trace file: classify its (process, thread) pairs as threads or streams of a
device, name them and sort them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.timeline.columns import Interned
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.event import Event
from stepprof.analysis.timeline.model import Flags, Indices, Slices, Times, Track, TrackKind
from stepprof.analysis.timeline.salvage import DECODE_ERRORS
from stepprof.formatting import number

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of work on a stream of a device."""
DEVICE_ANNOTATIONS = frozenset({"gpu_user_annotation"})
"""The category of annotations on a stream, which cover kernels without nesting with them."""
RUNTIME = frozenset(
    {
        *("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime"),
        *("privateuse1_runtime", "privateuse1_driver"),
    }
)
"""Categories of calls of a device's runtime."""
HOST = RUNTIME | {"cpu_op", "user_annotation", "python_function"}
"""Categories of work on a thread. A thread and a stream may have the same numbers: the categories
distinguish them.
"""

WRITTEN = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Python": "python_function",
    "Runtime": "cuda_runtime",
    "mtia_ccp_events": "kernel",
}
"""What torch 1.8 and 1.9, and devices with words of their own, call a category; and what others call it."""
_NOT_WORK = frozenset({"Trace", "overhead", "cpu_instant_event", "cuda_event", "cuda_profiler_range"})
"""Categories of the profiler's own facts, on rows of their own."""
OURS = "stepprof"
"""The category of stepprof's own events in a trace: regions of coroutines, and regions in a trace
without others.
"""
OUR_ATTRIBUTES = "stepprof.attributes"
"""The category of the attributes of a region that the trace also has on its thread."""

Place = int | str
Kind = TrackKind | Literal["annotations", "waits"]
_KINDS: tuple[Kind, ...] = ("thread", "stream", "annotations", "waits")
_KIND_OF = dict.fromkeys(DEVICE, 1) | dict.fromkeys(DEVICE_ANNOTATIONS, 2) | {"cuda_sync": 3}
_ON_DEVICE = frozenset(_KINDS[1:])

_OF_PROCESSES = frozenset({"process_name", "process_labels", "process_sort_index"})
_OF_THREADS = frozenset({"thread_name", "thread_sort_index"})
_MOST_UNKNOWN = 4
_TRACK, _NAMED = 900, 600
"""Bytes of memory of a track until it is drawn, and of a name."""
_STREAM_NAME = re.compile(r"stream\b", re.IGNORECASE)
_MERGED = re.compile(r"\[[^\]]*\]")
"""The text that a merger puts before the process of each rank."""


class _Named(msgspec.Struct):
    """The arguments of an event that names a process or thread."""

    name: str = ""
    labels: str = ""
    sort_index: float = 0


_named = msgspec.json.Decoder(_Named)


@dataclass(slots=True)
class Rows:
    """The tracks of one file, numbered in the order of their first use."""

    keys: Interned[tuple[Kind, Place, Place]] = field(default_factory=Interned)
    """(kind, pid, tid) or (kind, pid, name) of each track, in order."""
    places: Interned[tuple[Place, Place]] = field(default_factory=Interned)
    """(pid, tid) of each place of complete events."""
    ends: Interned[tuple[Place, Place]] = field(default_factory=Interned)
    """(pid, tid) of each place at which an arrow starts or ends."""
    _hosts: set[tuple[Place, Place]] = field(default_factory=set)
    """Places at which a thread of the host worked."""
    _worked: set[Place] = field(default_factory=set)
    """Processes of which more than Python's frames is known."""
    _tracks: npt.NDArray[np.int32] = field(default_factory=lambda: np.full((0, len(_KINDS)), -1, np.int32))
    _kinds: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    _process: dict[Place, _Named] = field(default_factory=dict)
    _thread: dict[tuple[Place, Place], _Named] = field(default_factory=dict)
    _stream: dict[tuple[Place, Place], _Named] = field(default_factory=dict)
    """Names of streams, at places that may also belong to a thread."""
    _name_bytes: int = 0

    def of_places(self, place: Indices, category: Indices, categories: Interned[str]) -> Indices:
        """Return the track of each complete event: by its place, and for a device also by its
        category.
        """
        if len(categories) > len(self._kinds):
            kinds = [_KIND_OF.get(name, 0) for name in categories]
            self._kinds = np.array(kinds, dtype=np.int32)
        missing = len(self.places) - len(self._tracks)
        self._tracks = np.concatenate((self._tracks, np.full((missing, len(_KINDS)), -1, np.int32)))
        kind = self._kinds[category]
        track: Indices = self._tracks[place, kind]
        if len(track) and track.min() < 0:
            unknown = track < 0
            first = int(place[unknown].min())
            places = self.places.since(first)
            for number in distinct(place[unknown].astype(np.int64) * len(_KINDS) + kind[unknown]).tolist():
                where, what = divmod(number, len(_KINDS))
                self._tracks[where, what] = self._track_of(_KINDS[what], *places[where - first])
            track = self._tracks[place, kind]
        return track

    @property
    def held(self) -> int:
        """Approximate bytes of memory of the tracks."""
        return self.keys.held + self.places.held + self.ends.held + _TRACK * len(self.keys) + self._name_bytes

    def of_thread(self, pid: Place, tid: Place) -> int:
        """Return the track of an event without a duration on a thread."""
        return self._track_of("thread", pid, tid)

    def _track_of(self, kind: Kind, pid: Place, tid: Place) -> int:
        return self.keys[kind, pid, tid]

    def works_on_host(self, pid: Place, tid: Place, category: str) -> None:
        """Note that a place belongs to a thread, even if a stream has the same numbers."""
        self._hosts.add((pid, tid))
        if category != "python_function":
            self._worked.add(pid)

    def unrecognised(self, slices: Slices, categories: Sequence[str]) -> list[str]:
        """Return a sentence for each unknown category of a process without threads, which is a device."""
        hosts = {pid for pid, _ in self._hosts}
        new = [at for at, each in enumerate(categories) if each not in HOST | _KIND_OF.keys() | _NOT_WORK]
        devices = [
            kind == "thread" and isinstance(pid, int) and pid not in hosts for kind, pid, _ in self.keys
        ]
        there = np.flatnonzero(np.isin(slices.category, new) & np.array(devices, bool)[slices.track])
        keys = list(self.keys)
        found = Counter(
            (categories[category], keys[track][1])
            for category, track in zip(
                slices.category[there].tolist(), slices.track[there].tolist(), strict=True
            )
        )
        return [
            f"{number(count)} events of the category {category!r} on {self._device_name(pid)} were not recognised: they are in no figure"
            for (category, pid), count in found.most_common(_MOST_UNKNOWN)
        ]

    def _device_name(self, pid: Place) -> str:
        known = self._process.get(pid)
        return (known.labels or known.name) if known and (known.labels or known.name) else f"process {pid}"

    def of_ends(self, place: Indices, time: Times, ends: Flags, slices: Slices) -> Indices:
        """Return the track of each end of an arrow; on a device, that of the stream. Call it once
        all events are known.

        If a thread and a stream have the same numbers, the end is where a slice starts at that time, as Kineto writes arrows.

        Args:
            place: the place of each, in `ends`.
            time: the time of each, on the clock of `slices`.
            ends: whether the arrow ends there, and does not start.
            slices: all of the file.
        """
        known = [
            self._track_of("stream" if ("stream", *at) in self.keys else "thread", *at) for at in self.ends
        ]
        track = np.array(known, dtype=np.int32)[place]
        for end, (pid, tid) in enumerate(self.ends):
            if not self._is_shared(pid, tid):
                continue
            here = np.flatnonzero(place == end)
            thread, stream = self.keys["thread", pid, tid], self.keys["stream", pid, tid]
            on_thread, on_stream = (
                np.isin(time[here], slices.start[slices.track == row]) for row in (thread, stream)
            )
            unclear = on_thread == on_stream
            track[here] = np.where(np.where(unclear, ends[here], on_stream), stream, thread)
        return track

    def _is_shared(self, pid: Place, tid: Place) -> bool:
        return (pid, tid) in self._hosts and ("stream", pid, tid) in self.keys

    def _is_only_stream(self, pid: Place, tid: Place) -> bool:
        """Return whether a stream has these numbers, and no thread of the host."""
        return (pid, tid) not in self._hosts and ("stream", pid, tid) in self.keys

    def name(self, event: Event) -> None:
        """Add an event of metadata."""
        if event.name not in _OF_PROCESSES and event.name not in _OF_THREADS:
            return
        try:
            named = _named.decode(event.args)
        except DECODE_ERRORS:
            return
        if event.name in _OF_PROCESSES:
            known = self._process.setdefault(event.pid, _Named())
        elif _STREAM_NAME.match(named.name):
            known = self._stream.setdefault((event.pid, event.tid), _Named())
        else:
            known = self._thread.setdefault((event.pid, event.tid), _Named())
        self._name_bytes += _NAMED + len(event.args)
        known.name = named.name or known.name
        if named.labels != "CPU":  # a device with the id of this process has a name that states more
            known.labels = named.labels or known.labels
        known.sort_index = named.sort_index or known.sort_index

    def processes(self) -> dict[str, str]:
        """Return the name of each process that has one."""
        return {str(pid): named.name for pid, named in self._process.items() if named.name}

    def tracks(self) -> list[Track]:
        """Return the tracks, in the order of their numbers."""
        keys = list(self.keys)
        processes = {
            pid for kind, pid, _ in keys if kind == "thread" and (isinstance(pid, int) or _MERGED.match(pid))
        }
        devices = {pid for kind, pid, _ in keys if kind == "stream"}
        processes -= devices - {pid for pid, _ in self._hosts}
        processes -= {
            0
        } - self._worked  # torch puts the outermost frames of a thread that it does not know there
        many = len(processes) > 1
        order = sorted(range(len(keys)), key=lambda number: self._order(keys[number]))
        place = {number: rank for rank, number in enumerate(order)}
        return [
            self._track(key, many and key[1] in processes, place[number]) for number, key in enumerate(keys)
        ]

    def _track(self, key: tuple[Kind, Place, Place], with_process: bool, order: int) -> Track:
        kind, pid, tid = key
        parts = (kind, str(pid), str(tid))
        prefix = f"{self._process_name(pid)}: " if with_process else ""
        if kind == "waits" or (kind == "thread" and self._is_only_stream(pid, tid)):
            return Track("async", f"{self._stream_name(pid, tid)} other", parts, order)
        if kind == "stream":
            return Track("stream", self._stream_name(pid, tid), parts, order)
        if kind == "annotations":
            return Track("async", f"{self._stream_name(pid, tid)} annotations", parts, order)
        if kind == "thread":
            known = self._thread.get((pid, tid)) or self._stream.get((pid, tid))
            unnamed = f"thread {tid}" if isinstance(tid, int) else tid or "profiler"
            name = known.name if known and known.name else unnamed
            if pid == tid and name.startswith(f"thread {tid} ("):  # as torch names them
                name = f"main {name}"
            return Track("thread", prefix + name, parts, order)
        if kind == "sample":
            return Track("sample", prefix + str(tid), (str(tid),), order)
        if kind == "async" and tid == OURS:
            return Track("async", f"{prefix}regions", parts, order)
        return Track(kind, prefix + str(tid), parts, order)

    def _process_name(self, pid: Place) -> str:
        known = self._process.get(pid)
        name = known.name if known and known.name else "process"
        return f"{name} {pid}"

    def _stream_name(self, pid: Place, tid: Place) -> str:
        known = self._process.get(pid)
        label = known.labels if known and known.labels else f"GPU {pid}"
        merged = _MERGED.match(pid) if isinstance(pid, str) else None
        if merged is not None and merged[0] not in label:
            label = f"{merged[0]} {label}"
        thread = self._stream.get((pid, tid))
        if thread is None and (pid, tid) not in self._hosts:
            thread = self._thread.get((pid, tid))
        name = (
            re.sub(r"^stream (\S+) \1$", r"stream \1", thread.name.strip())
            if thread and thread.name
            else f"stream {str(tid).removeprefix('stream ')}"
        )
        return f"{label} {name}"

    def _order(self, key: tuple[str, Place, Place]) -> tuple[object, ...]:
        kind, pid, tid = key
        process = self._process.get(pid)
        thread = self._thread.get((pid, tid))
        first = {"iterations": 0, "counter": 1, "async": 2, "sample": 2}.get(kind, 3)
        if isinstance(pid, str) and not _MERGED.match(pid):
            first += 2  # facts about the profiler itself
        return (
            first,
            kind in _ON_DEVICE or self._is_only_stream(pid, tid),
            process.sort_index if process else 0,
            str(pid),
            thread.sort_index if thread else 0,
            str(tid),
            kind,
        )
