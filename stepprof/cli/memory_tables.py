"""The memory tables of `stepprof show`: peaks per process, and the largest allocations at the peak."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.cli.row_grouping import FULL_ROWS
from stepprof.formats.memory_peaks import as_mapping, listed
from stepprof.formats.memory_snapshot import UNKNOWN, MemorySnapshot, read_snapshot
from stepprof.formatting import duration, indented, number, printable, size, table
from stepprof.host.plain_files import read_table

PEAK_COLUMNS = ("memory", "device", "held", "peak", "at s", "max allocated", "max reserved", "out of memory")
PLACE_COLUMNS = ("bytes", "blocks", "allocated by")
SNAPSHOT = "memory-snapshot"
SUMMARY = "memory-summary"
HIGHEST = 5
"""Number of peaks to show when there are more than a table has rows."""
_SUMMARY_BYTES = 1 << 20
_BACKSLASH = "\\"
_Entry = Mapping[str, Any]


def describe_memory(folder: Path, entries: Sequence[_Entry], most: int) -> dict[str, Any]:
    """Return the memory tables, JSON-able.

    `peaks` is what the processes wrote. `snapshots` has those that were read, each with its `top`
    places or its `finding`.

    Args:
        folder: the step's.
        entries: its windows and engines.
        most: the number of snapshots to read; `not_read` names the others.
    """
    paths = [artifact["path"] for _, artifact in _artifacts(entries, SNAPSHOT)]
    return {
        "peaks": [
            {"artifact": artifact["path"], **_summary(folder / artifact["path"])}
            for _, artifact in _artifacts(entries, SUMMARY)
        ],
        "snapshots": [dataclasses.asdict(read_snapshot(folder / path, path)) for path in paths[:most]],
        "not_read": paths[most:],
    }


def memory_tables(
    folder: Path, entries: Sequence[_Entry], most: int, *, show_all: bool = False
) -> tuple[list[str], list[str]]:
    """Return tables and notes on files that could not be read. Only the highest of many peaks are
    shown, unless `show_all`.
    """
    tables: list[str] = []
    notes: list[str] = []
    peaks = _peaks(folder, entries, notes, show_all=show_all)
    if peaks:
        tables.append(peaks)
    found = list(_artifacts(entries, SNAPSHOT))
    for entry, artifact in found[:most]:
        snapshot = read_snapshot(folder / artifact["path"], artifact["path"])
        if snapshot.finding:
            notes.append(f"{snapshot.path}: {snapshot.finding}")
        tables += _top(snapshot, entry)
    if len(found) > most:
        notes.append(
            f"{len(found) - most} more memory snapshots not read; --snapshots {len(found)} reads all"
        )
    return tables, notes


def _artifacts(entries: Sequence[_Entry], kind: str) -> Iterator[tuple[_Entry, _Entry]]:
    for entry in entries:
        for artifact in entry["artifacts"]:
            if artifact["kind"] == kind:
                yield entry, artifact


def _summary(path: Path) -> dict[str, Any]:
    """Return the peaks that a process wrote, or a `finding` if they cannot be read."""
    try:
        found = read_table(path, _SUMMARY_BYTES)
    except OSError as error:
        return {"finding": f"cannot be read: {error.strerror or error}"}
    except ValueError as error:
        return {"finding": str(error)}
    devices = [dict(as_mapping(device)) for device in listed(found.get("devices"))]
    return {"devices": devices, "out_of_memory": found.get("out_of_memory")}


def _peaks(folder: Path, entries: Sequence[_Entry], notes: list[str], *, show_all: bool) -> str:
    rows: list[tuple[int, list[str | int | None]]] = []
    for entry, artifact in _artifacts(entries, SUMMARY):
        summary = _summary(folder / artifact["path"])
        if "finding" in summary:
            notes.append(f"{artifact['path']}: {summary['finding']}")
            continue
        for device in summary["devices"]:
            row = [
                "  " + artifact["path"],
                _plain(device, "device"),
                size(_plain(device, "allocated_bytes")),
                size(_plain(device, "history_peak_bytes")),
                _since(_plain(device, "history_peak_unix_us"), entry),
                size(_plain(device, "max_allocated_bytes")),
                size(_plain(device, "max_reserved_bytes")),
                number(_plain(device, "num_ooms")),
            ]
            rows.append((_plain(device, "max_allocated_bytes") or 0, row))
    if not rows:
        return ""
    left_out = 0
    if len(rows) > FULL_ROWS and not show_all:
        left_out = len(rows) - HIGHEST
        rows = sorted(rows, key=lambda each: -each[0])[:HIGHEST]
    shown = table(indented(PEAK_COLUMNS), [row for _, row in rows], "lrrrrrrr")
    return f"{shown}\n  ({left_out} with less allocated omitted; --all shows them)" if left_out else shown


def _top(snapshot: MemorySnapshot, entry: _Entry) -> Iterator[str]:
    for peak in snapshot.devices:
        places = snapshot.top[peak.device]
        if not places:
            continue
        moment = _since(peak.peak_unix_us, entry)
        at = (
            "before the start of the history"
            if moment is None
            else f"{moment} s after the start of the window"
        )
        title = f"{snapshot.path}, device {peak.device}: {size(peak.peak_bytes)} requested and held at the peak, {at}"
        rows = [
            [
                "  " + (size(place.bytes) or ""),
                number(place.count),
                printable(" < ".join(map(_short, place.frames[:3])) or UNKNOWN),
            ]
            for place in places
        ]
        yield f"{printable(title)}\n{table(indented(PLACE_COLUMNS), rows, 'rrl')}"


def _short(frame: str) -> str:
    """Return a frame with the last two parts of its path."""
    where, _, name = frame.rpartition(" ")
    return f"{'/'.join(where.replace(_BACKSLASH, '/').split('/')[-2:])} {name}"


def _since(unix_us: int | None, entry: _Entry) -> str | None:
    start = entry["start_unix_ns"]
    return None if unix_us is None or start is None else duration((unix_us * 1000 - start) / 1e9)


def _plain(device: Mapping[str, Any], key: str) -> int | None:
    """Return a number that a process wrote, or None if it is larger than any valid one."""
    value = device.get(key)
    return value if type(value) is int and abs(value) < 1 << 63 else None
