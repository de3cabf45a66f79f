"""Match the calls of several ranks that are one collective.

Calls that state their process group are matched within it, by number if they are numbered. For the
others (gloo on threads, torch 2.13) the traces list the process groups of the job. A call is
matched if it can be of one group only, and the calls of all members overlap.

A collective is matched only if every member of its group was recorded. A rank that was not recorded
may be the one that the others wait for. Other calls stay unmatched, and no rank is named for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.collectives import Columns, Kind, ranks_text, synchronises
from stepprof.analysis.report.intervals import Intervals, Times

TOLERANCE_NS = 200_000
"""How long before the last call begins a rank's call may end, in addition to the clocks' errors.

Of 600 synchronising calls of gloo (torch 2.13, one machine) each ended 62 us or more after the last
one began.
"""

_SLACKS_NS = (0, 2_000_000, 50_000_000, 200_000_000)
"""Calls within this distance from the edges of a capture are left out.

The ends of one call spread by up to 38 ms on a busy machine (torch 2.13, gloo).
"""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Peer:
    """The communication of one process.

    Attributes:
        label: name of the process.
        columns: its communication.
        rank: its rank in the job; -1: not known.
        world: ranks of the job; 0: not known.
        configured: the ranks of each process group that it is in, as `ranks_text`; empty: not known.
        island: processes of one island can be compared in time.
        error_ns: error of its times on the clock of its island.
        machine: processes of one machine have no error between them.
        captured: when it was captured; None: not known.
        whole: whether its captures hold all of its windows, from start to end. Windows start and
            end at the same places of every rank's program.
    """

    label: str
    columns: Columns
    rank: int = -1
    world: int = 0
    configured: Sequence[str] = ()
    island: str = ""
    error_ns: int = 0
    machine: str | None = None
    captured: Intervals | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Matched:
    """Collectives of one kind whose members were all recorded.

    Call `rows[m][i]` of `members[m]` is its part of the i-th collective.
    """

    kind: Kind
    members: list[int]
    """Into the peers."""
    rows: list[Rows]
    error_ns: int | None
    """The error of a comparison of their times; None: their clocks were never compared."""
    on_host: bool


@dataclass(slots=True)
class Matching:
    """The result of `match`."""

    columns: list[Columns]
    """Of each peer."""
    matched: list[Matched] = field(default_factory=list)
    recorded: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """For each call of each peer, how many members of its group were recorded; 0: not known; -1:
    the call is matched.
    """
    members: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """For each call of each peer, how many members its group has; 0: not known."""
    error_ns: int | None = 0
    """The error of a comparison of times of any two peers; None: some were never compared."""


@dataclass(slots=True)
class _Bucket:
    """Calls of one kind that may belong together."""

    kind: Kind
    size: int = 0
    """How many members the stated group has; 0: not known."""
    entries: dict[int, Rows] = field(default_factory=dict)


def match(peers: Sequence[Peer]) -> Matching:
    """Match the calls of all ranks of a job.

    Args:
        peers: one for each process, in any order.
    """
    found = Matching([peer.columns for peer in peers], error_ns=_error_ns(peers))
    for columns in found.columns:
        found.recorded.append(np.zeros(len(columns.start), np.int64))
        found.members.append(np.zeros(len(columns.start), np.int64))
    stated, others = _buckets(found.columns)
    for bucket in stated.values():
        _match_stated(bucket, peers, found)
    for kind, bucket in others.items():
        if kind == "point_to_point":
            _match_exchanges(bucket, peers, found)
        else:
            _match_by_time(bucket, peers, found)
    return found


def _buckets(
    columns: Sequence[Columns],
) -> tuple[dict[tuple[str, Kind], _Bucket], dict[Kind, _Bucket]]:
    """Return the calls with a stated group by group and kind, and the other calls by kind.

    Transfers between two ranks are in neither, but those of a device whose group is not stated: an all-to-all of NCCL has their name.
    """
    stated: dict[tuple[str, Kind], _Bucket] = {}
    others: dict[Kind, _Bucket] = {}
    for number, each in enumerate(columns):
        for kind_at, kind in enumerate(each.kinds):
            which = np.flatnonzero((each.kind == kind_at) & each.finished)
            for rows in _by_group(each, which):
                at = int(each.group[rows[0]])
                if kind == "point_to_point" and (at >= 0 or each.on_host[rows].any()):
                    continue
                if at >= 0:
                    group = each.groups[at]
                    bucket = _Bucket(kind, group.size)
                    stated.setdefault((group.name, kind), bucket).entries[number] = rows
                else:
                    others.setdefault(kind, _Bucket(kind)).entries[number] = rows
    return stated, others


def _by_group(columns: Columns, rows: Rows) -> list[Rows]:
    """Return the rows of each group, in their order."""
    ordered = rows[np.argsort(columns.group[rows], kind="stable")]
    groups = columns.group[ordered]
    return np.split(ordered, np.flatnonzero(groups[1:] != groups[:-1]) + 1) if len(rows) else []


def _match_stated(bucket: _Bucket, peers: Sequence[Peer], found: Matching) -> None:
    """Match calls that state their group."""
    size = bucket.size
    entries = _distinct(bucket.entries, peers)
    _note_members(found, bucket.entries, len(entries), size)
    if not size or len(entries) != size:
        return
    columns = found.columns
    if all((columns[at].seq[rows] >= 0).all() for at, rows in entries.items()):
        numbered = {}
        for at, rows in entries.items():
            known, where = np.unique(columns[at].seq[rows], return_index=True)
            numbered[at] = (known, rows[where])
        common = numbered[next(iter(numbered))][0]
        for known, _ in numbered.values():
            common = np.intersect1d(common, known, assume_unique=True)
        aligned = {at: rows[np.isin(known, common)] for at, (known, rows) in numbered.items()}
        _take(bucket.kind, aligned, peers, found)
        return
    _match_in_order(bucket.kind, entries, peers, found)


def _match_by_time(bucket: _Bucket, peers: Sequence[Peer], found: Matching) -> None:
    """Match calls that state no group, by the groups that the traces list and by time.

    Calls of a rank that is in one group only are of that group. Once these are matched, another
    rank may be left with one group. If every rank is in several groups, time alone proves nothing:
    ranks of different groups often call at the same time.
    """
    groups = _groups_of(peers, bucket.entries)
    by_rank = {peers[at].rank: at for at in bucket.entries}
    if not groups or -1 in by_rank or len(by_rank) != len(bucket.entries):
        return
    whole = all(rank in by_rank for group in groups for rank in group)
    alone = _has_alone(peers, bucket.entries)
    if alone and not (whole and synchronises(bucket.kind) and len(groups) == 1):
        # synchronising calls of one group overlap; others may be of a group of one rank, and nothing shows which
        return
    if len(groups) == 1:
        (only,) = groups
        there = {by_rank[rank]: bucket.entries[by_rank[rank]] for rank in only if rank in by_rank}
        if not alone:
            _note_members(found, there, len(there), len(only))
        if len(there) == len(only):
            _match_in_order(bucket.kind, there, peers, found)
        return
    error = _error_ns([peers[at] for at in bucket.entries])
    if error is None or not whole:
        return  # a call may be of the group that was not recorded completely
    left = dict(bucket.entries)
    open_groups = [tuple(by_rank[rank] for rank in group) for group in groups]
    while single := next(
        (
            mine[0]
            for at in left
            if len(mine := [group for group in open_groups if at in group]) == 1 and len(left[at])
        ),
        None,
    ):
        anchor = next(at for at in single if sum(at in group for group in open_groups) == 1)
        aligned = _partners(bucket.kind, anchor, {at: left[at] for at in single}, error, found)
        if aligned is None:
            return
        _take(bucket.kind, aligned, peers, found)
        shared = _captured(single, peers)
        for at, rows in aligned.items():
            rest = np.setdiff1d(left[at], rows, assume_unique=True)
            # a call may still be of this group if a member was not captured at that time
            left[at] = (
                rest if shared is None else _within({at: rest}, found, shared, error + _SLACKS_NS[1])[at]
            )
        open_groups.remove(single)


def _match_exchanges(bucket: _Bucket, peers: Sequence[Peer], found: Matching) -> None:
    """Match transfers of all ranks of the job that are all-to-alls: as many on each rank, and each ends on all ranks together.

    Of real transfers between two ranks only these two end together.
    """
    groups = _groups_of(peers, bucket.entries)
    entries = _distinct(bucket.entries, peers)
    error = _error_ns([peers[at] for at in entries])
    if error is None or len(groups) != 1 or {*groups[0]} != {peers[at].rank for at in entries}:
        return
    if len({len(rows) for rows in entries.values()}) != 1:
        return
    ends = [_times(found, at, rows)[1] for at, rows in entries.items()]
    if (np.max(ends, axis=0) - np.min(ends, axis=0) <= TOLERANCE_NS + error).all():
        _take("all_to_all", entries, peers, found)


def _partners(
    kind: Kind, anchor: int, entries: Mapping[int, Rows], error: int, found: Matching
) -> dict[int, Rows] | None:
    """Return the calls of a group's members that belong to those of one member, which are all of
    that group.

    None: they cannot be determined.
    """
    if len({len(rows) for rows in entries.values()}) == 1:
        return dict(entries) if not synchronises(kind) or _overlap(entries, found, error) else None
    if not synchronises(kind):
        return None
    begin, end = _times(found, anchor, entries[anchor])
    aligned = {anchor: entries[anchor]}
    for at, rows in entries.items():
        if at == anchor:
            continue
        begins, ends = (np.sort(times) for times in _times(found, at, rows))
        # the number of its calls that end before the anchor's begins, and that begin before it ends
        over = np.searchsorted(ends, begin - error, side="right")
        under = np.searchsorted(begins, end + error, side="left")
        if (under - over != 1).any():  # none of its calls overlaps the anchor's, or several do
            return None
        aligned[at] = rows[np.argsort(_times(found, at, rows)[1], kind="stable")][over]
    return aligned if _overlap(aligned, found, error) else None


def _times(found: Matching, at: int, rows: Rows) -> tuple[Times, Times]:
    """Return when calls begin and end."""
    start = found.columns[at].start[rows]
    return start, start + found.columns[at].duration[rows]


def _groups_of(peers: Sequence[Peer], entries: Iterable[int]) -> list[list[int]]:
    """Return the process groups of some peers that have several members, the largest first.

    They are those that the traces list, otherwise the whole job.
    """
    texts: dict[str, None] = {}
    for at in entries:
        peer = peers[at]
        texts.update(dict.fromkeys(peer.configured))
        if not peer.configured and peer.world:
            texts[ranks_text(range(peer.world))] = None
    groups = [_ranks_of(text) for text in texts]
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group))


def _has_alone(peers: Sequence[Peer], entries: Iterable[int]) -> bool:
    """Return whether a peer is in a group of one rank in addition to others.

    Frameworks make such a group for each rank, and a call may be of it.
    """
    return any(
        len(peers[at].configured) > 1 and any(len(_ranks_of(text)) == 1 for text in peers[at].configured)
        for at in entries
    )


def _ranks_of(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        ranks += range(int(low), int(high or low) + 1)
    return ranks


def _distinct(entries: Mapping[int, Rows], peers: Sequence[Peer]) -> dict[int, Rows]:
    """Return one entry of each rank. A rank that two processes claim has none: neither can be
    trusted.
    """
    count = Counter(peers[at].rank for at in entries)
    return {at: rows for at, rows in entries.items() if peers[at].rank < 0 or count[peers[at].rank] == 1}


def _note_members(found: Matching, entries: Mapping[int, Rows], recorded: int, size: int) -> None:
    """Record for calls how many members of their group were recorded."""
    for at, rows in entries.items():
        found.recorded[at][rows] = recorded if size else 0
        found.members[at][rows] = size


def _take(kind: Kind, aligned: Mapping[int, Rows], peers: Sequence[Peer], found: Matching) -> None:
    """Record that calls are matched, one by one in the given order."""
    members = list(aligned)
    error = _error_ns([peers[at] for at in members])
    if not len(aligned[members[0]]) or (error is None and not synchronises(kind)):
        return
    on_host = bool(found.columns[members[0]].on_host[aligned[members[0]]].all())
    found.matched.append(Matched(kind, members, [aligned[at] for at in members], error, on_host))
    for at in members:
        found.recorded[at][aligned[at]] = -1


def _match_in_order(kind: Kind, entries: Mapping[int, Rows], peers: Sequence[Peer], found: Matching) -> None:
    """Match calls of one group that are not numbered: the i-th calls of all members.

    Their numbers must be equal, and their times must fit.
    """
    error = _error_ns([peers[at] for at in entries])
    # a call that was running when a capture began is not in it, so equal counts prove nothing
    if error is None:
        return
    shared = _captured(entries, peers)
    if len({len(rows) for rows in entries.values()}) > 1:
        if shared is None or not synchronises(kind):
            return
        for slack in _SLACKS_NS:
            part = _within(entries, found, shared, slack + error)
            if len({len(rows) for rows in part.values()}) == 1 and _overlap(part, found, error):
                _take(kind, part, peers, found)
                return
    elif (
        _overlap(entries, found, error)
        if synchronises(kind)
        else _hold_the_same(entries, peers, found, shared, error)
    ):
        _take(kind, entries, peers, found)


def _captured(entries: Iterable[int], peers: Sequence[Peer]) -> Intervals | None:
    """Return when all of some peers were captured; None: not known."""
    shared: Intervals | None = None
    for at in entries:
        captured = peers[at].captured
        if captured is None:
            return None
        shared = captured if shared is None else shared & captured
    return shared


def _within(entries: Mapping[int, Rows], found: Matching, shared: Intervals, slack: int) -> dict[int, Rows]:
    """Return the calls that end inside some intervals and not near their edges.

    Members leave a synchronising collective at about the same time.
    """
    return {at: rows[_inside(_times(found, at, rows)[1], shared, slack)] for at, rows in entries.items()}


def _inside(times: Times, shared: Intervals, slack: int) -> npt.NDArray[np.bool_]:
    """Return which times are inside the intervals and at least `slack` from their edges; a negative
    `slack` allows times outside.
    """
    at = np.searchsorted(shared.start + slack, times, side="right") - 1
    return (
        (at >= 0) & (times <= (shared.end - slack)[np.maximum(at, 0)])
        if len(shared)
        else np.zeros(len(times), bool)
    )


def _hold_the_same(
    entries: Mapping[int, Rows],
    peers: Sequence[Peer],
    found: Matching,
    shared: Intervals | None,
    error: int,
) -> bool:
    """Return whether equally many calls with a root are the same calls on each member. Their
    overlap shows nothing.

    They are the same if the captures contain all windows. Otherwise all must begin while every
    member was captured: a member that was captured for longer may have another call instead of a
    missing one. It is unknown what a damaged trace lacks. Then a member with complete captures
    shows how many calls there were.
    """
    whole = [peers[at].whole for at in entries]
    if all(whole) or shared is None:
        return any(whole)
    slack = -error - TOLERANCE_NS
    # there is another call that may be of this kind
    if not all(found.columns[at].finished.all() for at in entries):
        return False
    return all(_inside(_times(found, at, rows)[0], shared, slack).all() for at, rows in entries.items())


def _overlap(entries: Mapping[int, Rows], found: Matching, error: int) -> bool:
    """Return whether the calls of all members overlap, one by one."""
    times = [_times(found, at, rows) for at, rows in entries.items()]
    if not times or not len(times[0][0]):
        return False
    latest = np.max([begin for begin, _ in times], axis=0)
    earliest = np.min([end for _, end in times], axis=0)
    return bool((earliest - latest >= -TOLERANCE_NS - error).all())


def _error_ns(peers: Sequence[Peer]) -> int | None:
    """Return the largest error of a comparison between two of the processes; None: the clocks of some were never compared."""
    if len({peer.island for peer in peers}) > 1:
        return None
    by_machine: dict[str | None, int] = {}
    for peer in peers:
        by_machine[peer.machine] = max(by_machine.get(peer.machine, 0), peer.error_ns)
    if len(by_machine) < 2:
        return 0
    return sum(sorted(by_machine.values())[-2:])
