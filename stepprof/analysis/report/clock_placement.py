"""Place sources on the common clock by their collectives, if their hosts were never compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from stepprof.analysis.report.clock_estimate import UNKNOWN_NS, Estimate, Member, Move, Series, estimate
from stepprof.analysis.report.collectives import Kind, kind_of
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.intervals import Moment, Moments
from stepprof.analysis.report.processes import measurable
from stepprof.analysis.report.shared_clock import shared_clocks
from stepprof.analysis.timeline.manifest_sources import Process, process_of
from stepprof.analysis.timeline.model import Alignment, Origin

_KINDS: dict[Kind, int] = {"barrier": 0, "reduce_scatter": 1, "all_gather": 2, "all_reduce": 3}
"""Collectives in which every rank waits for every other one. A rank of an all-to-all may have no
data for another one, which then does not wait for it.
"""
_ALL = "all ranks"


def place(
    digests: Sequence[Digest], manifests: Sequence[Mapping[str, Any]], processes: Mapping[Process, Alignment]
) -> tuple[list[Digest], dict[Process, Alignment], list[str]]:
    """Place sources on the common clock as far as comparisons or collectives allow.

    Args:
        digests: of all sources.
        manifests: of the step.
        processes: how the times of each process in the manifests are placed.

    Returns:
        The digests, the processes, and the reasons why other clocks could not be estimated.
    """
    made = estimated(digests, manifests)
    placed = []
    for digest in digests:
        alignment = moved_alignment(digest.alignment, made.moves)
        move = alignment.offset_ns - digest.alignment.offset_ns
        placed.append(digest if alignment == digest.alignment else moved(digest, move, alignment))
    moved_processes = {key: moved_alignment(each, made.moves) for key, each in processes.items()}
    return placed, moved_processes, made.findings


def moved_alignment(alignment: Alignment, moves: Mapping[str, Move]) -> Alignment:
    """Return how a source is placed on the common clock after its island was moved."""
    move = moves.get(alignment.island)
    if move is None:
        return alignment
    error = (alignment.error_ns or 0) + move.error_ns
    return Alignment(move.method, alignment.offset_ns + move.offset_ns, error, move.island)


def rank_job(origin: Origin) -> tuple[object, ...] | None:
    """Return the job whose collectives a source has; None if it is not of a rank.

    Only collectives of one job are matched.
    """
    if origin.kind == "spans" or type(origin.rank) is not int:
        return None
    if origin.kind == "engine" and origin.replica is None:
        return None
    return origin.kind, origin.role, origin.replica, origin.occurrence


def estimated(digests: Sequence[Digest], manifests: Sequence[Mapping[str, Any]]) -> Estimate:
    """Estimate the offsets of clocks that were never compared, from the collectives."""
    shared = shared_clocks(digests)
    digests = [
        msgspec.structs.replace(each, alignment=moved_alignment(each.alignment, shared)) for each in digests
    ]
    made = _of_collectives(digests, manifests)
    onwards = {island: _through(move, made.moves.get(move.island)) for island, move in shared.items()}
    made.moves = {**made.moves, **onwards}
    return made


def _through(move: Move, further: Move | None) -> Move:
    """Return a move, and then another one."""
    if further is None:
        return move
    return Move(further.island, further.offset_ns, move.error_ns + further.error_ns)


def _of_collectives(digests: Sequence[Digest], manifests: Sequence[Mapping[str, Any]]) -> Estimate:
    if len({digest.alignment.island for digest in digests}) < 2:
        return Estimate()
    windows = [measurable(window) for manifest in manifests for window in manifest["windows"]]
    threads: dict[Process, set[str]] = defaultdict(set)
    times: dict[Process, list[int]] = defaultdict(list)
    for window in windows:
        threads[process_of(window)].add(str(window["thread"]))
        times[process_of(window)] += [
            int(window[key]) for key in ("start_unix_ns", "end_unix_ns") if window[key] is not None
        ]
    extents: dict[str, list[int]] = defaultdict(list)
    for digest in digests:
        own = [time - digest.alignment.offset_ns for time in times[digest.origin.process]]
        extents[digest.alignment.island] += [
            *own,
            *(edge for edge in (digest.start, digest.end) if edge is not None),
        ]
    members = []
    for digest in digests:
        origin, alignment = digest.origin, digest.alignment
        job, extent = rank_job(origin), extents[alignment.island]
        own_clock = alignment.method == "unmeasured"
        if job is None or not extent or (alignment.error_ns is None and not own_clock):
            continue
        members.append(
            Member(
                alignment.island,
                origin.host or origin.path,
                job,
                int(origin.rank or 0),
                alignment.error_ns or 0,
                min(extent),
                max(extent),
                _series(digest, threads[origin.process], times[origin.process]),
            )
        )
    return estimate(members)


def _series(digest: Digest, threads: set[str], edges: Sequence[int]) -> dict[str, Series]:
    """Return the collectives of a source that can be matched, by process group.

    The digest has cut them to the windows of its process.
    """
    calls = digest.calls
    name = np.frombuffer(calls.name, "<i4").astype(np.int64)
    if not len(name):
        return {}
    kind = np.array([_KINDS.get(kind_of(text), -1) for text in calls.names], np.int64)[name]
    start = np.frombuffer(calls.start, "<i8").astype(np.int64)
    end = start + np.frombuffer(calls.duration, "<i8")
    end[calls.unfinished] = UNKNOWN_NS
    begun = np.ones(len(start), np.bool_)
    if edges:
        opened, closed = (edge(edges) - digest.alignment.offset_ns for edge in (min, max))
        begun = start > opened
        end[end >= closed] = UNKNOWN_NS
    group = np.frombuffer(calls.group, "<i4") if calls.group else np.full(len(name), -1, np.int32)
    number = np.frombuffer(calls.seq, "<i8") if calls.seq else np.full(len(name), -1, np.int64)
    series = {}
    for at, process_group in enumerate(calls.groups):
        which = np.flatnonzero((group == at) & (number >= 0) & (kind >= 0) & begun)
        known, first, count = np.unique(number[which], return_index=True, return_counts=True)
        once = which[first[count == 1]]
        if len(once):
            series[process_group.name] = Series(kind[once], start[once], end[once], known[count == 1])
    issued = digest.issued
    whole = digest.whole and digest.status == "complete"
    if issued is not None and whole and threads == {issued.thread}:
        which = np.flatnonzero(kind >= 0)
        series[_ALL] = Series(kind[which], start[which], end[which], None, issued.world)
    return series


def moved(digest: Digest, offset_ns: int, alignment: Alignment) -> Digest:
    """Return the digest with all its times earlier by `offset_ns`.

    Args:
        digest: to move.
        offset_ns: nanoseconds to subtract.
        alignment: the new alignment of its source.
    """
    earlier: Digest = _earlier(digest, offset_ns)
    return msgspec.structs.replace(earlier, alignment=alignment)


def _earlier(value: Any, offset_ns: int) -> Any:
    """Return a part of a digest with its times earlier: they are the fields of the types `Moment` and `Moments`."""
    if isinstance(value, list):
        return [_earlier(each, offset_ns) for each in value]
    if not isinstance(value, msgspec.Struct):
        return value
    parts: dict[str, Any] = {}
    for name, is_time in _fields(type(value)):
        part = getattr(value, name)
        if not is_time:
            parts[name] = _earlier(part, offset_ns)
        elif isinstance(part, bytes):
            parts[name] = (np.frombuffer(part, "<i8") - offset_ns).astype("<i8").tobytes()
        elif part is not None:
            parts[name] = part - offset_ns
    return msgspec.structs.replace(value, **parts)


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, bool]]:
    """Return the fields of a struct, and whether each is a point in time."""
    times = (Moment, Moments, Moment | None)
    return [(field.name, field.type in times) for field in msgspec.structs.fields(kind)]
