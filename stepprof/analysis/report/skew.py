"""Find the last process of each phase, and which process the others waited for in its collectives.

Ranks that synchronise finish together, however slow one of them is. Then the ends show nothing, and
the waits inside collectives show the cause. Both are reported separately.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stepprof.analysis.report.collectives import Columns, columns_of
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.matching import Peer, match
from stepprof.analysis.report.processes import Process, largest_unsure_ns, unsure_ns
from stepprof.analysis.report.schema import PhaseSkew, ProcessTime, UnmatchedTime
from stepprof.analysis.report.waiting import Phase, PhaseWaits, Unmatched, Waiting, Waits, waits_in
from stepprof.run.model import WHOLE_STEP

MOST_PHASES = 100


def end_skew(processes: Sequence[Process], waits: Mapping[str, Waiting]) -> list[PhaseSkew]:
    """Return for each role and region the last process to finish its last call, the widest spread
    first.

    Only processes of one clock are compared.

    Args:
        processes: of the step.
        waits: inside collectives, by label: a rank is not blamed for its waits for others.
    """
    phases: dict[tuple[str, Phase], dict[str, _Part]] = defaultdict(dict)
    for process in processes:
        held, waiting = process.held(), waits.get(process.label, Waiting())
        stood = (waiting.when | waiting.for_profiler | waiting.unmatched) - process.working()[0]
        left_open = process.cut_short()
        # a region without a role may be in a window that has not ended
        unfollowed = left_open | {None} if left_open else left_open
        for window in process.windows:
            if window.role not in left_open:
                part = _Part(process, window.start, window.end, held, stood)
                _extend(phases[process.island, (window.role, None)], part)
        for region in process.regions if process.is_followed else []:
            if region.role not in unfollowed and (region.role, region.name) not in process.failed():
                part = _Part(process, region.first, region.last, held, stood)
                _extend(phases[process.island, (region.role, region.name)], part)
    rows = [_row(phase, list(parts.values())) for (_, phase), parts in phases.items() if len(parts) > 1]
    rows.sort(key=lambda row: (not row.significant, -row.spread))
    return rows[:MOST_PHASES]


@dataclass(frozen=True, slots=True)
class _Part:
    """One process in a phase, from the start of its first call to the end of its last one."""

    process: Process
    first: int
    last: int
    held: Intervals
    """While the profiler held it up, in the whole step."""
    stood: Intervals
    """While it was in collectives without computing, in the whole step."""

    def held_until(self, time: int) -> int:
        """Return how long the profiler had held it up by then [ns]."""
        return self.held.clip(-(2**62), time).total


def _extend(parts: dict[str, _Part], part: _Part) -> None:
    known = parts.get(part.process.label)
    if known is not None:
        first, last = min(known.first, part.first), max(known.last, part.last)
        part = _Part(part.process, first, last, part.held, part.stood)
    parts[part.process.label] = part


def _row(phase: Phase, parts: list[_Part]) -> PhaseSkew:
    parts.sort(key=lambda part: -part.last)
    straggler, earliest = parts[0], parts[-1]
    unsure = unsure_ns(straggler.process, earliest.process)
    # behind the median by more than the error of the clocks, also compared with other machines
    doubt = largest_unsure_ns(straggler.process, [part.process for part in parts[1:]])
    spread = straggler.last - earliest.last
    behind = straggler.last - median(part.last for part in parts[1:])
    # the profiler may have held up the last process for longer than the others
    held = straggler.held_until(straggler.last) - median(part.held_until(part.last) for part in parts[1:])
    by_profiler = min(max(held, 0), max(behind, 0))
    return PhaseSkew(
        role=phase[0],
        region=phase[1],
        straggler=straggler.process.label,
        spread=spread / 1e9,
        behind_median=behind / 1e9,
        waited=[ProcessTime(part.process.label, (straggler.last - part.last) / 1e9) for part in parts[:0:-1]],
        significant=unsure is not None and doubt is not None and spread > unsure and behind > doubt,
        began_later=(straggler.first - median(part.first for part in parts[1:])) / 1e9,
        by_profiler=by_profiler / 1e9,
        by_waiting=min(straggler.stood.clip(straggler.first, straggler.last).total, max(behind, 0)) / 1e9,
    )


def waits_of(processes: Sequence[Process]) -> list[Waits]:
    """Return the waits inside collectives: between the ranks of the job, and between the workers of
    an engine.
    """
    jobs: dict[object, list[tuple[Process, Peer]]] = defaultdict(list)
    job_of = _jobs([process for process in processes if process.kind != "engine"])
    for process in processes:
        digests = [digest for digest in process.digests if len(digest.calls)]
        if digests:
            origin = process.origin
            engine = (origin.role, origin.replica, origin.occurrence)
            job = engine if process.kind == "engine" else job_of[process.label]
            jobs[job].append((process, _peer(process, digests)))
    found = []
    for members in jobs.values():
        peers = [peer for _, peer in members]
        phases = [_phases(process, peer.columns) for process, peer in members]
        held = [process.held() for process, _ in members]
        computing = [process.working()[0] for process, _ in members]
        found.append(waits_in([peer.label for peer in peers], match(peers), phases, held, computing))
    return found


def _jobs(processes: Sequence[Process]) -> dict[str, str | None]:
    """Return the job of each process, by label.

    Processes with a common role are of one job, also indirectly. A run may contain several jobs,
    each with a rank 0.
    """
    parent: dict[str | None, str | None] = {}

    def root(role: str | None) -> str | None:
        while parent.setdefault(role, role) != role:
            role = parent[role]
        return role

    roles_of = {}
    for process in processes:
        roles = [
            *process.roles,
            *(digest.origin.role for digest in process.digests if digest.origin.kind == "rank"),
        ]
        named: list[str | None] = [role for role in roles if role is not None]
        named = named or [None]
        roles_of[process.label] = named[0]
        for role in named:
            parent[root(role)] = root(named[0])
    return {label: root(role) for label, role in roles_of.items()}


def _peer(process: Process, digests: Sequence[Digest]) -> Peer:
    origin, covered = process.origin, process.covered()
    ranks = {digest.calls.rank for digest in digests if digest.calls.rank >= 0}
    if not ranks and isinstance(origin.rank, int):
        ranks = {origin.rank}
    worlds = [digest.calls.world for digest in digests]
    worlds += [
        window["world_size"] for window in process.manifest_windows if isinstance(window["world_size"], int)
    ]
    return Peer(
        label=process.label,
        columns=columns_of([(digest.origin.role, digest.calls) for digest in digests]),
        rank=ranks.pop() if len(ranks) == 1 else -1,
        world=next((world for world in worlds if world > 0), 0),
        configured=list(dict.fromkeys(text for digest in digests for text in digest.calls.configured)),
        island=process.island,
        error_ns=process.error_ns or 0,
        machine=process.machine,
        captured=covered if len(covered) else None,
        whole=process.is_whole,
    )


def _phases(process: Process, columns: Columns) -> list[Phase]:
    """Return the role and region of each call.

    The role is that of the shortest window around the start of the call. For a kernel it is the
    window around all of it: a kernel may run after the window that launched it.
    """
    roles = [columns.roles[number] for number in columns.role.tolist()]
    ends = columns.start + columns.duration
    for window in sorted(process.windows, key=lambda window: window.start - window.end):
        low, high = np.searchsorted(columns.start, (window.start, window.end)).tolist()
        for at in (low + np.flatnonzero(columns.on_host[low:high] | (ends[low:high] <= window.end))).tolist():
            roles[at] = window.role
    names = [*columns.regions, None]  # -1: in none
    phases = [(role, names[number]) for role, number in zip(roles, columns.region.tolist(), strict=True)]
    # the trace contains the window itself under its own name
    return [(role, None) if region == (role or WHOLE_STEP) else (role, region) for role, region in phases]


def collective_skew(waits: Mapping[Phase, PhaseWaits]) -> list[PhaseSkew]:
    """Return for each phase the process that the others waited for longest inside its collectives.

    `spread` is the longest wait for it, minus its own waiting.
    """
    rows = []
    for (role, region), phase in waits.items():
        straggler = phase.straggler
        if straggler is None:
            continue
        own = phase.waited[straggler]
        others = [
            ProcessTime(label, phase.for_straggler[label] / 1e9, calls)
            for label, calls in phase.calls.items()
            if label != straggler
        ]
        others.sort(key=lambda time: -time.seconds)
        if not others:
            continue
        middle = median(time.seconds for time in others)
        rows.append(
            PhaseSkew(
                role=role,
                region=region,
                straggler=straggler,
                spread=others[0].seconds - own / 1e9,
                behind_median=middle - own / 1e9,
                waited=others,
                significant=others[0].seconds > own / 1e9,
                basis="collectives",
            )
        )
    rows.sort(key=lambda row: -row.spread)
    return rows[:MOST_PHASES]


def unmatched_times(unmatched: Mapping[Phase, Unmatched]) -> list[UnmatchedTime]:
    """Return the communication that could not be matched, the longest first."""
    rows = []
    for (role, region), phase in unmatched.items():
        times = [ProcessTime(label, spent / 1e9, phase.calls[label]) for label, spent in phase.spent.items()]
        times.sort(key=lambda time: -time.seconds)
        known = phase.recorded == {max(phase.recorded)} and phase.members == {max(phase.members)}
        sizes = (max(phase.recorded), max(phase.members)) if known else (0, 0)
        rows.append(UnmatchedTime(role, region, times, sizes[0] or None, sizes[1] or None))
    rows.sort(key=lambda row: -row.spent[0].seconds)
    return rows[:MOST_PHASES]
