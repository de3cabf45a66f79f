"""Detect another live job that records under the same run id, and keep the two apart when reading.

Jobs share a run id if both have the same STEPPROF_RUN_ID. Then a rank of each writes the same step.
Several groups of ranks of one job may have equal ranks too, so equal ranks prove nothing. Each
fragment has its job, and the live process of another job that wrote as the same rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from stepprof.host.plain_files import read_table
from stepprof.host.process_identity import is_alive
from stepprof.interrupts import ours

Entry = Mapping[str, Any]


def rival_in(fragment: Path, writer: Mapping[str, object], job: str | None) -> dict[str, Any] | None:
    """Return the writer of a fragment if it is a live process of another job.

    Args:
        fragment: a fragment of the same rank and role as the caller's own.
        writer: the calling process.
        job: its job; None: unknown, and the result is None.
    """
    try:
        content = read_table(fragment)
        other, theirs = content["writer"], content.get("job")
    except ours(OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    if job is None or theirs in (None, job) or other == writer or not isinstance(other, dict):
        return None
    return other if is_alive(other) else None


def jobs_apart(targets: Iterable[Sequence[tuple[tuple[int, int], Entry]]]) -> list[set[object]]:
    """Return the jobs in groups, in the order of time. Jobs of different groups recorded the same
    target at the same time. Usually there is one group.

    Args:
        targets: for each rank in a role, its entries with their times.
    """
    begins: dict[object, int] = {}
    rivals: set[frozenset[object]] = set()
    for entries in targets:
        spans: dict[object, list[tuple[int, int]]] = {}
        for span, entry in entries:
            job = entry.get("job")
            begins[job] = min(begins.get(job, span[0]), span[0])
            spans.setdefault(job, []).append(span)
        named = {entry.get("job") for _, entry in entries if entry.get("rival") is not None}
        for one, other in combinations([job for job in spans if job is not None], 2):
            if {one, other} & named or _overlap(spans[one], spans[other]):
                rivals.add(frozenset((one, other)))
    groups: list[set[object]] = []
    for job in sorted(begins, key=lambda job: begins[job]):
        free = [group for group in groups if not any(frozenset((job, other)) in rivals for other in group)]
        if free:
            free[0].add(job)
        else:
            groups.append({job})
    return groups or [{None}]


def _overlap(one: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in one for c, d in other)


def sentences(windows: Iterable[Entry]) -> list[str]:
    """Return one sentence per rank and role that a live process of another job had recorded."""
    found = {}
    for window in windows:
        other = window.get("rival")
        if isinstance(other, dict):
            place = f"{window['role'] or 'step'} rank {window['rank']}"
            found[place] = (
                f"{place} was recorded by two jobs that ran at once under one run id: by pid {window['pid']} on {window['host']} "
                f"and by pid {other.get('pid')} on {other.get('host')}; give each job a STEPPROF_RUN_ID of its own"
            )
    return list(found.values())
