"""The rows of a trace file: which of its (process, thread) pairs are threads, and which the streams of a device, what they are called and how they are ordered."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from stepprof.timeline.columns import Interned
from stepprof.timeline.model import Track
from stepprof.timeline.raw import Event

__all__ = ["DEVICE", "DEVICE_ANNOTATIONS", "Rows"]

DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of what a stream of a device does."""
DEVICE_ANNOTATIONS = frozenset({"gpu_user_annotation"})
"""Lies over kernels without nesting in them."""

Place = int | str
Key = tuple[str, ...]


class _Named(msgspec.Struct):
    """The arguments of what names a process or thread."""

    name: str = ""
    labels: str = ""
    sort_index: float = 0


_named = msgspec.json.Decoder(_Named)


@dataclass(slots=True)
class Rows:
    """The tracks of one file, as they are met."""

    keys: Interned[tuple[str, Place, Place]] = field(default_factory=Interned)
    """(kind, pid, tid) or (kind, pid, what it is called) of each track, in order."""
    _process: dict[Place, _Named] = field(default_factory=dict)
    _thread: dict[tuple[Place, Place], _Named] = field(default_factory=dict)

    def name(self, event: Event) -> None:
        """Take in an event of metadata."""
        try:
            told = _named.decode(event.args)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if event.name.startswith("process_"):
            known = self._process.setdefault(event.pid, _Named())
        elif event.name.startswith("thread_"):
            known = self._thread.setdefault((event.pid, event.tid), _Named())
        else:
            return
        known.name, known.labels = told.name or known.name, told.labels or known.labels
        known.sort_index = told.sort_index or known.sort_index

    def tracks(self) -> list[Track]:
        """Return the tracks, in the order of their numbers."""
        keys = list(self.keys)
        streams = {(pid, tid) for kind, pid, tid in keys if kind == "stream"}
        processes = {
            pid for kind, pid, _ in keys if kind == "thread" and isinstance(pid, int) or "[" in str(pid)
        }
        processes -= {pid for pid, _ in streams}
        many = len(processes) > 1
        order = sorted(range(len(keys)), key=lambda number: self._order(keys[number]))
        place = {number: rank for rank, number in enumerate(order)}
        return [
            self._track(key, many and key[1] in processes, place[number], streams)
            for number, key in enumerate(keys)
        ]

    def _track(
        self, key: tuple[str, Place, Place], told: bool, order: int, streams: set[tuple[Place, Place]]
    ) -> Track:
        kind, pid, tid = key
        parts = (kind, str(pid), str(tid))
        prefix = f"{self._process_name(pid)}: " if told else ""
        if kind == "thread" and (pid, tid) in streams:
            return Track("stream", f"{self._stream_name(pid, tid)} other", parts, order)
        if kind == "stream":
            return Track("stream", self._stream_name(pid, tid), parts, order)
        if kind == "annotations":
            return Track("async", f"{self._stream_name(pid, tid)} annotations", parts, order)
        if kind == "thread":
            known = self._thread.get((pid, tid))
            return Track(
                "thread", prefix + (known.name if known and known.name else f"thread {tid}"), parts, order
            )
        name = prefix + str(tid)
        if kind == "sample":
            return Track("sample", name, (str(tid),), order)
        return Track(
            "iterations" if kind == "iterations" else "counter" if kind == "counter" else "async",
            name,
            parts,
            order,
        )

    def _process_name(self, pid: Place) -> str:
        known = self._process.get(pid)
        name = known.name if known and known.name else "process"
        return f"{name} {pid}"

    def _stream_name(self, pid: Place, tid: Place) -> str:
        known = self._process.get(pid)
        label = known.labels if known and known.labels else f"GPU {pid}"
        thread = self._thread.get((pid, tid))
        name = (
            re.sub(r"^stream (\S+) \1$", r"stream \1", thread.name)
            if thread and thread.name
            else f"stream {tid}"
        )
        return f"{label} {name}"

    def _order(self, key: tuple[str, Place, Place]) -> tuple[object, ...]:
        kind, pid, tid = key
        process = self._process.get(pid)
        thread = self._thread.get((pid, tid))
        first = {"iterations": 0, "counter": 1, "async": 2, "sample": 2}.get(kind, 3)
        return (
            first,
            process.sort_index if process else 0,
            str(pid),
            thread.sort_index if thread else 0,
            str(tid),
            kind,
        )
