"""Read the counters of devices' allocators, from the summaries that the memory backend writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import Allocator
from stepprof.formats.memory_peaks import as_mapping, listed
from stepprof.host.plain_files import read_table

SUMMARY = "memory-summary"
_MOST_BYTES = 1 << 20
_LARGEST = 10**12
Counts = Mapping[str, Sequence[tuple[int, int, int]]]
"""The counts of each device, by the path of its summary: the device's number, its retries, its
failed requests.
"""


def read_counts(folder: Path | None, manifests: Sequence[Mapping[str, Any]]) -> Counts:
    """Return the counts of the summaries in a step's folder. What cannot be read is left out.

    Args:
        folder: of the step.
        manifests: of the step.
    """
    found: dict[str, Sequence[tuple[int, int, int]]] = {}
    if folder is None:
        return found
    for manifest in manifests:
        for window in manifest["windows"]:
            for path in _summaries(window):
                try:
                    devices = listed(read_table(folder / path, _MOST_BYTES).get("devices"))
                except (OSError, ValueError):
                    continue
                found[path] = [counts for device in devices if (counts := _counts(as_mapping(device)))]
    return found


def _summaries(window: Mapping[str, Any]) -> Iterator[str]:
    for artifact in window["artifacts"]:
        if artifact["kind"] == SUMMARY:
            yield artifact["path"]


def _counts(device: Mapping[str, Any]) -> tuple[int, int, int] | None:
    number, retries, failed = (device.get(key) for key in ("device", "num_alloc_retries", "num_ooms"))
    if isinstance(number, int) and isinstance(retries, int) and isinstance(failed, int):
        return (
            (number, retries, failed)
            if 0 <= min(retries, failed) <= max(retries, failed) < _LARGEST
            else None
        )
    return None


def allocators_of(processes: Sequence[Process], counts: Counts) -> list[Allocator]:
    """Return a row for each device of a process whose allocator had to retry, those with most retries first.

    Args:
        processes: of the step.
        counts: of its summaries. A later summary of a process counts what an earlier one has counted too.
    """
    rows: dict[tuple[str, int], Allocator] = {}
    for process in processes:
        for window in process.manifest_windows:
            for path in _summaries(window):
                for number, retries, failed in counts.get(path, ()):
                    known = rows.get((process.label, number))
                    if max(retries, failed) and (known is None or retries >= known.retries):
                        rows[process.label, number] = Allocator(process.label, number, retries, failed)
    return sorted(rows.values(), key=lambda row: (-row.retries, -row.failed))
