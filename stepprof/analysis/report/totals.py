"""Sum over processes: time by role and region, overlap, memory, recording overhead.

The cost of an engine's stop is estimated for other limits of forward steps. An engine answers no request
while it writes its trace, and the trace grows with each forward step. The rate is the time for the
recorded steps divided by their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepprof.analysis.report.digest import Work
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process, engine_of
from stepprof.analysis.report.schema import (
    Allocator,
    Memory,
    Overhead,
    Overlap,
    ProcessTime,
    StopCost,
    TimeOf,
)
from stepprof.analysis.timeline.model import Origin
from stepprof.formats.memory_peaks import as_mapping, listed
from stepprof.host.plain_files import read_table
from stepprof.run.summary import SESSIONS, engine_label

MOST_REGIONS = 200
BOUNDS = (32, 128, 512)
"""Values of `max_iterations` to estimate for."""
SUMMARY = "memory-summary"
_MOST_BYTES = 1 << 20
_LARGEST = 10**12
Counts = Mapping[str, Sequence[tuple[int, int, int]]]
"""The counts of each device, by the path of its summary: the device's number, its retries, its
failed requests.
"""


def _times(
    parts: Mapping[tuple[str | None, str | None], Sequence[tuple[Process, Intervals, int, int]]],
    start: int,
    end: int,
) -> list[TimeOf]:
    rows = []
    for (role, region), entries in parts.items():
        when = Intervals.all_of(covered for _, covered, _, _ in entries)
        per_process = []
        for process, covered, calls, nanoseconds in entries:
            last = int(covered.end[-1]) if len(covered) else start
            per_process.append(ProcessTime(process.label, nanoseconds / 1e9, calls, (last - start) / 1e9))
        seconds = min(when.total, sum(entry[3] for entry in entries)) / 1e9
        share = seconds * 1e9 / (end - start) if end > start else 0.0
        rows.append(TimeOf(role, region, seconds, share, per_process))
    return rows


def role_times(processes: Sequence[Process], start: int, end: int) -> list[TimeOf]:
    """Return the rows of roles, in the order in which they start."""
    parts: dict[tuple[str | None, str | None], list[tuple[Process, Intervals, int, int]]] = defaultdict(list)
    first: dict[str | None, int] = {}
    for process in processes:
        known = [window for window in process.windows if window.ends]
        for role in {window.role for window in known}:
            when = process.in_role(role)
            calls = sum(window.role == role for window in known)
            parts[role, None].append((process, when, calls, when.total))
            begins = min(window.start for window in known if window.role == role)
            first[role] = min(begins, first.get(role, begins))
    ordered = sorted(parts, key=lambda key: (key[0] is not None, first[key[0]], key[0] or ""))
    return _times({key: parts[key] for key in ordered}, start, end)


def region_times(processes: Sequence[Process], start: int, end: int) -> list[TimeOf]:
    """Return the longest first."""
    parts: dict[tuple[str | None, str | None], dict[str, tuple[Process, Intervals, int, int]]] = defaultdict(
        dict
    )
    for process in processes:
        for region in process.regions:
            entries = parts[region.role, region.name]
            when = Intervals.unpack(region.when)
            inside = when.clip(start, max(start, end))
            length = region.covered - (when.total - inside.total)  # without what is before or after the step
            if process.label in entries:  # combined over several captures
                _, known, calls, covered = entries[process.label]
                entries[process.label] = (process, known | inside, calls + region.calls, covered + length)
            else:
                entries[process.label] = (process, inside, region.calls, length)
    rows = _times({key: list(entries.values()) for key, entries in parts.items()}, start, end)
    rows.sort(key=lambda row: (-row.seconds, row.region or ""))
    return rows[:MOST_REGIONS]


def overlaps(processes: Sequence[Process]) -> list[Overlap]:
    """Return communication and computation of each device, over all captures of a process.

    A process without a device has a row if it communicates.
    """
    rows = []
    for process in processes:
        works: dict[tuple[str, str], list[Work]] = defaultdict(list)
        for digest in process.digests:
            for work in digest.works:
                works[work.device, work.number].append(work)
        covered = process.covered()
        several = len({number for device, number in works if device != "cpu"}) > 1
        for (device, number), those in works.items():
            communication = sum(work.communication for work in those)
            overlapped = sum(work.overlapped for work in those)
            if not communication and device == "cpu":
                continue
            busy = Intervals.all_of(
                Intervals.unpack(each) for work in those for each in (work.computing, work.communicating)
            )
            closed = sum(work.closed for work in those)
            rows.append(
                Overlap(
                    label=process.label,
                    device=f"{device} {number}" if several else device,
                    compute=sum(work.compute for work in those) / 1e9,
                    communication=communication / 1e9,
                    overlapped=overlapped / 1e9,
                    exposed=(communication - overlapped) / 1e9,
                    busy_share=max((busy & covered).total - closed, 0) / covered.total
                    if device != "cpu" and len(covered)
                    else None,
                )
            )
    return rows


def memory_peaks(processes: Sequence[Process], start: int) -> list[Memory]:
    """Return the peak of each process on each device, the highest first."""
    rows: dict[tuple[str, str], Memory] = {}
    for process in processes:
        for digest in process.digests:
            for device, peak, at in ((peak.device, peak.peak, peak.at) for peak in digest.memory):
                known = rows.get((process.label, device))
                if known is None or peak > known.peak_bytes:
                    rows[process.label, device] = Memory(process.label, device, peak, (at - start) / 1e9)
    return sorted(rows.values(), key=lambda row: -row.peak_bytes)


def overheads(
    processes: Sequence[Process], windows: Sequence[Mapping[str, Any]], engines: Sequence[Mapping[str, Any]]
) -> list[Overhead]:
    """Return the recording costs of each process and each engine, from the manifest."""
    labels = {id(window): process.label for process in processes for window in process.manifest_windows}
    sums: dict[str, dict[str, float | None]] = {}
    for window in windows:
        label = labels.get(id(window)) or Origin("rank", "", role=window["role"], rank=window["rank"]).label
        _add(
            sums,
            label,
            {key: window.get(f"{key}_seconds") for key in ("arm", "start", "wait", "stall", "export")},
        )
    for engine in engines:
        if engine["status"] != "joined":
            _add(sums, engine_label(engine), {key: engine[f"{key}_seconds"] for key in ("start", "stop")})
    rows = [Overhead(label, **times) for label, times in sums.items()]
    return [row for row in rows if row.held or row.export or row.stop]


def _add(sums: dict[str, dict[str, float | None]], label: str, times: Mapping[str, float | None]) -> None:
    known = sums.setdefault(label, {})
    for key, seconds in times.items():
        if seconds is not None:
            known[key] = (known.get(key) or 0.0) + seconds


def recorded_steps(processes: Iterable[Process]) -> dict[str, int]:
    """Return the number of forward steps in the capture of each engine, including those outside of
    its window.

    The worker with the most steps counts.
    """
    steps: dict[str, int] = {}
    for process in processes:
        if process.kind == "engine":
            label = engine_of(process.origin)
            steps[label] = max([steps.get(label, 0), *(digest.recorded_steps for digest in process.digests)])
    return steps


def stop_costs(processes: Iterable[Process], engines: Sequence[Mapping[str, Any]]) -> list[StopCost]:
    """Return the estimate of each engine whose time to write its trace is known."""
    steps = recorded_steps(processes)
    found = []
    for engine in engines:
        label = engine_label(engine)
        count = steps.get(label, 0)
        if not count or engine["kind"] in SESSIONS or engine["status"] not in ("complete", "partial"):
            continue
        seconds, basis = _write_seconds(engine)
        if seconds:
            estimates = [(bound, seconds / count * bound) for bound in BOUNDS if bound != count]
            found.append(StopCost(label, count, seconds, basis, estimates))
    return found


def _write_seconds(engine: Mapping[str, Any]) -> tuple[float, str]:
    """Return the time to write the trace, and the source of that figure.

    If an engine ended its capture by itself, its stop does not show that time: the trace was written before.
    """
    if engine["write_seconds"]:
        return engine["write_seconds"], "write"
    if engine["stop_seconds"] is None or engine["capped_by"] == "engine":
        return 0.0, "stop"
    return max(engine["stop_seconds"] - (engine["overrun_seconds"] or 0.0), 0.0), "stop"


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
