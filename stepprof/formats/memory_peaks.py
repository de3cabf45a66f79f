"""Summarise a snapshot of CUDA's allocator: per device the held bytes, and the peak with its time.

This is arithmetic on the tables of `torch.cuda.memory._snapshot`, for writers and readers of a
snapshot. The history has requested sizes; a free counts when the memory can be used again. The
history is a ring: it is followed backwards from its end, and the peak is one of the remaining
entries. Values are checked, because a file may contain anything: anything but a number counts as 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """One device: the bytes held at the end, the peak during the history, and its time (Unix time
    in microseconds).
    """

    device: int
    entries: int
    active_bytes: int
    reserved_bytes: int
    peak_bytes: int
    peak_unix_us: int | None
    peak_entry: int | None
    """The entry of the history at the peak; None: the peak was before the first entry."""
    allocations: int
    ooms: int


def device_peaks(snapshot: Mapping[str, Any]) -> list[DevicePeak]:
    """Return the peak of each device that holds memory or has a history."""
    active: dict[int, int] = {}
    reserved: dict[int, int] = {}
    for segment in map(as_mapping, listed(snapshot.get("segments"))):
        device = as_number(segment.get("device"))
        reserved[device] = reserved.get(device, 0) + as_number(segment.get("total_size"))
        held = sum(map(_asked_for, listed(segment.get("blocks"))))
        active[device] = active.get(device, 0) + held
    traces = listed(snapshot.get("device_traces"))
    found = {device for device, trace in enumerate(traces) if listed(trace)} | set(reserved)
    return [
        _peak(
            device,
            listed(traces[device]) if 0 <= device < len(traces) else [],
            active.get(device, 0),
            reserved.get(device, 0),
        )
        for device in sorted(found)
    ]


def entries_of(snapshot: Mapping[str, Any]) -> int:
    """Return the number of entries in the histories of a snapshot."""
    return sum(len(listed(trace)) for trace in listed(snapshot.get("device_traces")))


def listed(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_number(value: object) -> int:
    """Return an integer; 0 for anything else."""
    return value if type(value) is int else 0


def _asked_for(block: object) -> int:
    table = as_mapping(block)
    if table.get("state") == "inactive":
        return 0
    return as_number(table.get("requested_size", table.get("size")))


def _peak(device: int, trace: list[Any], active: int, reserved: int) -> DevicePeak:
    events = [(as_mapping(entry).get("action"), as_number(as_mapping(entry).get("size"))) for entry in trace]
    level = active - sum(map(_change, events))
    peak, at = level, None
    for index, held in enumerate(itertools.accumulate(map(_change, events), initial=level)):
        if held > peak:
            peak, at = held, index - 1
    moment = None if at is None else as_mapping(trace[at]).get("time_us")
    return DevicePeak(
        device=device,
        entries=len(trace),
        active_bytes=active,
        reserved_bytes=reserved,
        peak_bytes=peak,
        peak_unix_us=moment if type(moment) is int else None,
        peak_entry=at,
        allocations=_count(events, "alloc"),
        ooms=_count(events, "oom"),
    )


def _change(event: tuple[object, int]) -> int:
    """Return the bytes by which an entry of the history changes the held bytes."""
    action, size = event
    return size if action == "alloc" else -size if action == "free_completed" else 0


def _count(events: Iterable[tuple[object, int]], wanted: str) -> int:
    return sum(action == wanted for action, _ in events)
