"""Who was last, and who waited for whom: by when the processes finished a phase, and by how long they stood in its collectives.

Ranks that synchronise finish together however slow one of them is: then the ends say nothing, and the waits inside collectives say it all. Both are told, each as such.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stepprof.report.collectives import Peer, Waiting, match
from stepprof.report.processes import Process, unsure_ns
from stepprof.report.schema import PhaseSkew, ProcessTime

__all__ = ["collective_skew", "end_skew", "waits_of"]

MOST_PHASES = 100

Phase = tuple[str | None, str | None]


def end_skew(processes: Sequence[Process]) -> list[PhaseSkew]:
    """For each role and region that several processes went through: the last one to finish its last call, the widest spread first."""
    phases: dict[Phase, dict[str, _Part]] = defaultdict(dict)
    for process in processes:
        for window in process.windows:
            _extend(phases[window.role, None], _Part(process, window.start, window.end))
        for region in process.regions:
            _extend(phases[region.role, region.name], _Part(process, region.first, region.last))
    rows = [_row(phase, list(parts.values())) for phase, parts in phases.items() if len(parts) > 1]
    rows.sort(key=lambda row: (not row.significant, -row.spread))
    return rows[:MOST_PHASES]


@dataclass(frozen=True, slots=True)
class _Part:
    """One process in a phase, from the start of its first call to the end of its last one."""

    process: Process
    first: int
    last: int


def _extend(parts: dict[str, _Part], part: _Part) -> None:
    known = parts.get(part.process.label)
    if known is not None:
        part = _Part(part.process, min(known.first, part.first), max(known.last, part.last))
    parts[part.process.label] = part


def _row(phase: Phase, parts: list[_Part]) -> PhaseSkew:
    parts.sort(key=lambda part: -part.last)
    straggler, earliest = parts[0], parts[-1]
    unsure = unsure_ns(straggler.process, earliest.process)
    spread = straggler.last - earliest.last
    return PhaseSkew(
        role=phase[0],
        region=phase[1],
        straggler=straggler.process.label,
        spread=spread / 1e9,
        behind_median=(straggler.last - median(part.last for part in parts[1:])) / 1e9,
        waited=[ProcessTime(part.process.label, (straggler.last - part.last) / 1e9) for part in parts[:0:-1]],
        significant=unsure is not None and spread > unsure,
        began_later=(straggler.first - median(part.first for part in parts[1:])) / 1e9,
    )


def waits_of(processes: Sequence[Process]) -> dict[str | None, dict[str, Waiting]]:
    """What the processes of each role waited inside collectives, by role and label."""
    peers: dict[tuple[object, ...], list[Peer]] = defaultdict(list)
    for process in processes:
        for digest in process.digests:
            origin = digest.origin
            if digest.calls.name:
                group = (origin.role, origin.kind, origin.replica if origin.kind == "engine" else None)
                peers[group].append(
                    Peer(process.label, digest.calls, digest.alignment.error_ns, process.machine)
                )
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
        middle = median(waiting.waited_ns for label, waiting in by_label.items() if label != straggler)
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
