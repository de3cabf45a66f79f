"""Who was last, and who waited for whom: by when the processes finished a phase, and by how long they stood in its collectives.

Ranks that synchronise finish together however slow one of them is: then the ends say nothing, and the waits inside collectives say it all. Both are told, each as such.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from stepprof.report.collectives import Peer, Waiting, match
from stepprof.report.processes import Process, unsure_ns
from stepprof.report.schema import PhaseSkew, ProcessTime

__all__ = ["collective_skew", "end_skew", "waits_of"]

MOST_PHASES = 100

Phase = tuple[str | None, str | None]


def end_skew(processes: Sequence[Process]) -> list[PhaseSkew]:
    """For each role and region that several processes went through: the last one to finish its last call, the widest spread first."""
    ends: dict[Phase, dict[str, tuple[int, Process]]] = defaultdict(dict)
    for process in processes:
        for window in process.windows:
            _reach(ends[window.role, None], window.end, process)
        for region in process.regions:
            _reach(ends[region.role, region.name], region.last, process)
    rows = [_row(phase, list(entries.values())) for phase, entries in ends.items() if len(entries) > 1]
    rows.sort(key=lambda row: (not row.significant, -row.spread))
    return rows[:MOST_PHASES]


def _reach(entries: dict[str, tuple[int, Process]], end: int, process: Process) -> None:
    known = entries.get(process.label)
    if known is None or end > known[0]:
        entries[process.label] = (end, process)


def _row(phase: Phase, entries: list[tuple[int, Process]]) -> PhaseSkew:
    entries.sort(key=lambda entry: -entry[0])
    last, straggler = entries[0]
    first, earliest = entries[-1]
    unsure = unsure_ns(straggler, earliest)
    spread = last - first
    return PhaseSkew(
        role=phase[0],
        region=phase[1],
        straggler=straggler.label,
        spread=spread / 1e9,
        behind_median=(last - median(end for end, _ in entries)) / 1e9,
        waited=[ProcessTime(process.label, (last - end) / 1e9) for end, process in entries[:0:-1]],
        significant=unsure is not None and spread > unsure,
    )


def waits_of(processes: Sequence[Process]) -> dict[str | None, dict[str, Waiting]]:
    """What the processes of each role waited inside collectives, by role and label."""
    peers: dict[tuple[object, ...], list[Peer]] = defaultdict(list)
    for process in processes:
        for digest in process.digests:
            origin = digest.origin
            if digest.calls.name:
                group = (origin.role, origin.kind, origin.replica if origin.kind == "engine" else None)
                peers[group].append(Peer(process.label, digest.calls, digest.alignment.error_ns, origin.host))
    waits: dict[str | None, dict[str, Waiting]] = defaultdict(dict)
    for (role, *_), group_peers in peers.items():
        if len(group_peers) > 1:
            waits[role if isinstance(role, str) else None].update(match(group_peers))
    return dict(waits)


def collective_skew(waits: Mapping[str | None, Mapping[str, Waiting]]) -> list[PhaseSkew]:
    """For each role, the process that made the others wait longest inside collectives; `spread` is the longest wait, less the straggler's own."""
    rows = []
    for role, by_label in waits.items():
        if len(by_label) < 2:
            continue
        straggler = max(by_label, key=lambda label: by_label[label].caused_ns)
        own = by_label[straggler].waited_ns
        others = [
            ProcessTime(label, waiting.waited_ns / 1e9, waiting.matched)
            for label, waiting in by_label.items()
            if label != straggler
        ]
        others.sort(key=lambda time: -time.seconds)
        middle = median(waiting.waited_ns for waiting in by_label.values())
        rows.append(
            PhaseSkew(
                role=role,
                region=None,
                straggler=straggler,
                spread=others[0].seconds - own / 1e9,
                behind_median=(middle - own) / 1e9,
                waited=others,
                significant=others[0].seconds > own / 1e9,
                basis="collectives",
            )
        )
    rows.sort(key=lambda row: -row.spread)
    return rows
