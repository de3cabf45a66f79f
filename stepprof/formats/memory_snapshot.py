"""Read snapshots of CUDA's allocator: the peak of each device, and the held memory at that time by
place of allocation.

A snapshot is read as plain values, never run (`stepprof.formats.safe_pickle`). A hostile or damaged
file becomes a finding. The memory at the peak is found by following the history forward to it, then
adding what was freed later and what exists at the end. The stack of a free is that of the
allocation, unless stacks of frees were recorded too. With the allocation's stack, memory from
before the first entry has a place too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepprof.formats.memory_peaks import DevicePeak, as_mapping, as_number, device_peaks, entries_of, listed
from stepprof.formats.safe_pickle import MAX_BYTES, PickleRefused, read_pickle
from stepprof.host.plain_files import open_plain

MAX_ENTRIES = 5_000_000
"""Maximum number of entries, blocks and segments to read; a small file can refer to the same ones
many times.
"""
FRAMES = 8
"""Maximum frames to show of a stack, from the first that is not torch's own."""
UNKNOWN = "allocated before the history began, or without a stack"


@dataclass(frozen=True, slots=True)
class Allocations:
    """The allocations of one place in the code at the peak."""

    bytes: int
    count: int
    frames: tuple[str, ...]
    """Innermost frame first, as ``file:line name``; empty if no stack was recorded."""


@dataclass(slots=True)
class MemorySnapshot:
    """One snapshot: the peak of each device, and the places with the largest allocations at that
    time.
    """

    path: str
    devices: list[DevicePeak] = field(default_factory=list)
    top: dict[int, list[Allocations]] = field(default_factory=dict)
    out_of_memory: dict[str, int] | None = None
    finding: str | None = None
    """The reason if it could not be read."""


def read_snapshot(path: Path, name: str | None = None, *, top: int = 8) -> MemorySnapshot:
    """Read one snapshot. Never raise: a problem becomes its `finding`.

    Args:
        path: the pickle.
        name: what to call it.
        top: how many places are named of each device.
    """
    found = MemorySnapshot(name or path.name)
    try:
        table = _read(path)
    except OSError as error:
        found.finding = f"cannot be read: {error.strerror or error}"
    except PickleRefused as error:
        found.finding = f"is not read: {error}"
    else:
        found.devices = device_peaks(table)
        ours = as_mapping(table.get("stepprof"))
        of_allocations = ours.get("context") == "alloc"
        found.top = {
            peak.device: _held_at_peak(table, peak, of_allocations=of_allocations)[:top]
            for peak in found.devices
        }
        event = as_mapping(ours.get("out_of_memory"))
        found.out_of_memory = {key: as_number(event[key]) for key in sorted(event)} or None
    return found


def snapshot_problem(path: Path) -> str | None:
    """Return the problem of a snapshot, as a phrase that follows its name; None if it is complete."""
    try:
        _read(path)
    except PickleRefused as error:
        return f"is not read: {error}"
    return None


def _read(path: Path) -> Mapping[str, Any]:
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise PickleRefused(
                f"{size} bytes, more than the {MAX_BYTES} that are read here; pytorch.org/memory_viz shows it in a browser"
            )
        table = read_pickle(file.read(MAX_BYTES))
    if not isinstance(table, dict) or not isinstance(table.get("segments"), list):
        raise PickleRefused("not a snapshot of CUDA's allocator: it has no segments")
    segments = table["segments"]
    blocks = sum(len(listed(as_mapping(segment).get("blocks"))) for segment in segments)
    if len(segments) + blocks + entries_of(table) > MAX_ENTRIES:
        raise PickleRefused(f"more than {MAX_ENTRIES} entries")
    return table


def _held_at_peak(table: Mapping[str, Any], peak: DevicePeak, *, of_allocations: bool) -> list[Allocations]:
    """Return the held bytes by place; `of_allocations`: the stacks of frees are those of the
    allocations.
    """
    traces = listed(table.get("device_traces"))
    trace = listed(traces[peak.device]) if 0 <= peak.device < len(traces) else []
    until = 0 if peak.peak_entry is None else peak.peak_entry + 1
    held: dict[int, tuple[int, object]] = {}
    seen: set[int] = set()
    for index, entry in enumerate(map(as_mapping, trace)):
        action, address = entry.get("action"), as_number(entry.get("addr"))
        if action not in ("alloc", "free_completed"):
            continue
        if index < until:
            if action == "alloc":
                held[address] = (as_number(entry.get("size")), entry.get("frames"))
            else:
                held.pop(address, None)
        elif action == "free_completed" and address not in seen:
            held[address] = (as_number(entry.get("size")), entry.get("frames") if of_allocations else None)
        seen.add(address)
    for segment in map(as_mapping, listed(table.get("segments"))):
        if as_number(segment.get("device")) == peak.device:
            _add_blocks(segment, seen, held)
    return _by_place(held)


def _add_blocks(segment: Mapping[str, Any], seen: set[int], held: dict[int, tuple[int, object]]) -> None:
    """Count blocks that exist at the end but are not in the history: they existed all the time."""
    address = as_number(segment.get("address"))
    for block in map(as_mapping, listed(segment.get("blocks"))):
        here = as_number(block.get("address", address))
        if block.get("state") != "inactive" and here not in seen:
            held[here] = (as_number(block.get("requested_size", block.get("size"))), block.get("frames"))
        address = here + as_number(block.get("size"))


def _by_place(held: Mapping[int, tuple[int, object]]) -> list[Allocations]:
    known: dict[int, tuple[str, ...]] = {}
    sums: dict[tuple[str, ...], list[int]] = {}
    for size, frames in held.values():
        place = known.get(id(frames))
        if place is None:
            place = known[id(frames)] = _place(listed(frames))
        total = sums.setdefault(place, [0, 0])
        total[0] += size
        total[1] += 1
    found = [Allocations(size, count, place) for place, (size, count) in sums.items()]
    return sorted(found, key=lambda place: (-place.bytes, place.frames))


def _place(frames: Sequence[object]) -> tuple[str, ...]:
    """Return the frames from the first one outside torch."""
    tables = [as_mapping(frame) for frame in frames[:200]]
    own = next((index for index, frame in enumerate(tables) if not _is_torch(frame)), 0)
    return tuple(
        f"{_text(frame.get('filename'))}:{as_number(frame.get('line'))} {_text(frame.get('name'))}"
        for frame in tables[own : own + FRAMES]
    )


def _is_torch(frame: Mapping[str, Any]) -> bool:
    name = _text(frame.get("filename")).replace("\\", "/")
    return "/torch/" in name or not name.endswith(".py")


def _text(value: object) -> str:
    """Return the end of a string, printable on any terminal."""
    return value[-300:].encode(errors="replace").decode() if isinstance(value, str) else "?"
