"""Sum over processes: time by role and region, overlap, memory, recording overhead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from stepprof.analysis.report.digest import Work
from stepprof.analysis.report.division import roles_of
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.schema import (
    Memory,
    Overhead,
    Overlap,
    ProcessTime,
    TimeOf,
)
from stepprof.analysis.timeline.model import Origin
from stepprof.run.summary import engine_label

MOST_REGIONS = 200


_Entry = tuple[Process, Intervals, int, int]
"""A process, when it was in a role or region, its calls, and its nanoseconds there."""


def _row(
    key: tuple[str | None, str | None], nanoseconds: int, entries: Sequence[_Entry], start: int, end: int
) -> TimeOf:
    per_process = []
    for process, when, calls, spent in entries:
        last = int(when.end[-1]) if len(when) else start
        per_process.append(ProcessTime(process.label, spent / 1e9, calls, (last - start) / 1e9))
    share = nanoseconds / (end - start) if end > start else 0.0
    return TimeOf(*key, nanoseconds / 1e9, share, per_process)


def role_times(processes: Sequence[Process], start: int, end: int) -> list[TimeOf]:
    """Return the rows of roles, in the order in which they start."""
    entries: dict[str | None, list[_Entry]] = defaultdict(list)
    first: dict[str | None, int] = {}
    for process in processes:
        known = [window for window in process.windows if window.ends]
        for role in {window.role for window in known}:
            when = process.in_role(role)
            calls = sum(window.role == role for window in known)
            entries[role].append((process, when, calls, when.total))
            begins = min(window.start for window in known if window.role == role)
            first[role] = min(begins, first.get(role, begins))
    roles = roles_of(processes)
    ordered = sorted(entries, key=lambda role: (role is not None, first[role], role or ""))
    return [_row((role, None), roles[role].total, entries[role], start, end) for role in ordered]


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
    rows = []
    for key, by_process in parts.items():
        of = [*by_process.values()]
        together = Intervals.all_of(when for _, when, _, _ in of).total
        rows.append(_row(key, min(together, sum(spent for *_, spent in of)), of, start, end))
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
