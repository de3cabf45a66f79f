"""Find traces of unknown hosts that share a clock: their collectives end together.

No rank leaves an all-reduce before the last one has entered it, and all leave it within microseconds.
The clocks of two machines usually differ by more than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.clock_estimate import Move
from stepprof.analysis.report.collectives import Calls, is_host_communication, kind_of, synchronises
from stepprof.analysis.report.digest import Digest
from stepprof.analysis.report.intervals import Times
from stepprof.analysis.report.offset_bounds import READING_NS

TOGETHER_NS = 50_000
"""The ends of one collective differ by at most this on one machine (eight V100: 2 us)."""
MOST_OF_THEM = 0.8
"""The share of the calls that must end together. A capture may begin later or end earlier than another one."""
APART = 5
"""Calls must follow each other in at least this many times the difference of their ends. Otherwise chance explains it."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of the collectives of one process group, in order, and the number of calls of each kind."""

    end: Times
    kind: npt.NDArray[np.int64]


def shared_clocks(digests: Sequence[Digest]) -> dict[str, Move]:
    """Return the moves of islands that share a clock, by island: each onto the island of the first one.

    Only traces that do not state their host are compared. The largest set of them is placed on the common clock if nothing else is.
    """
    kinds: dict[str, int] = {}
    alone = [(each, _ends(each.calls, kinds)) for each in digests if _is_of_unknown_host(each)]
    sets: list[list[tuple[Digest, Mapping[str, _Ends], int]]] = []
    for made, own in alone:
        found = [
            (those, error)
            for those in sets
            if (error := next((e for _, other, _ in those if (e := _apart(own, other)) is not None), None))
            is not None
        ]
        joined = [each for those, _ in found for each in those]
        sets = [those for those in sets if not any(those is each for each, _ in found)]
        sets.append([*joined, (made, own, max((error for _, error in found), default=0))])
    is_placed = any(not each.alignment.island for each in digests)
    moves: dict[str, Move] = {}
    for those in sorted(sets, key=len, reverse=True):
        if len(those) > 1:
            island = those[0][0].alignment.island if is_placed or moves else ""
            moves |= {each.alignment.island: Move(island, 0, error, "shared") for each, _, error in those}
    return moves


def _is_of_unknown_host(made: Digest) -> bool:
    origin = made.origin
    known = origin.host is not None or made.alignment.method != "unmeasured"
    return origin.kind == "trace" and type(origin.rank) is int and not known


def _ends(calls: Calls, kinds: dict[str, int]) -> dict[str, _Ends]:
    """Return the ends of the calls of a device, by process group; "": it is not stated."""
    words = [kind_of(name) for name in calls.names]
    usable = [
        (synchronises(word) or word == "point_to_point") and not is_host_communication(name)
        for name, word in zip(calls.names, words, strict=True)
    ]
    name = np.frombuffer(calls.name, "<i4")
    kept = np.array(usable, bool)[name]
    kept[calls.unfinished] = False
    kind = np.array([kinds.setdefault(word, len(kinds)) for word in words], np.int64)[name]
    end = np.frombuffer(calls.start, "<i8") + np.frombuffer(calls.duration, "<i8")
    group = np.frombuffer(calls.group, "<i4") if calls.group else np.full(len(name), -1, np.int32)
    found = {}
    for at, known in [*enumerate(calls.groups), (-1, None)]:
        which = np.flatnonzero(kept & (group == at))
        which = which[np.argsort(end[which], kind="stable")]
        if len(which):
            found["" if known is None else known.name] = _Ends(end[which], kind[which])
    return found


def _apart(one: Mapping[str, _Ends], other: Mapping[str, _Ends]) -> int | None:
    """Return by how much the ends of common calls differ [ns]; None: they do not end together."""
    found = [
        apart
        for group in one.keys() & other.keys()
        if (apart := _median_apart(one[group], other[group])) is not None
    ]
    return min(found, default=None)


def _median_apart(one: _Ends, other: _Ends) -> int | None:
    if len(other.end) < len(one.end):
        one, other = other, one
    after = np.searchsorted(other.end, one.end)
    sides = [np.clip(after - back, 0, len(other.end) - 1) for back in (0, 1)]
    distances = [np.abs(other.end[side] - one.end) for side in sides]
    nearest = np.where(distances[0] <= distances[1], sides[0], sides[1])
    apart = np.minimum(*distances)
    together = (apart <= TOGETHER_NS) & (one.kind == other.kind[nearest])
    if len(one.end) < MOST_OF_THEM * len(other.end) or together.mean() < MOST_OF_THEM:
        return None
    median = max(int(np.median(apart[together])), READING_NS)
    gaps = np.diff(other.end)
    return None if len(gaps) and np.median(gaps) < APART * median else median
