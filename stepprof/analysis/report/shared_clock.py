"""Find traces of unknown hosts that share a clock: their collectives end together.

No rank leaves an all-reduce before the last one has entered it, and all leave it within microseconds.
The clocks of two machines usually differ by more than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
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


COMPARED_EACH = 32
"""Representatives that are compared one by one; more are filtered by their ends first."""
ALIKE = 0.9
"""Share of common calls from which a trace needs no representative of its own next to another one."""


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of the collectives of one process group, in order, with the kind of each and its number in the group (-1: not stated)."""

    end: Times
    kind: npt.NDArray[np.int64]
    seq: npt.NDArray[np.int64]


class _Representatives:
    """Traces with calls of groups of one name: at least one for each clock and each of the groups."""

    def __init__(self) -> None:
        self.of: list[tuple[int, _Ends]] = []
        """The number of the trace, and its ends."""
        self._indexed = 0
        self._counts = self._owner = np.empty(0, np.int64)
        self._end: Times = np.empty(0, np.int64)

    def near(self, ends: _Ends) -> Iterator[tuple[int, _Ends]]:
        """Yield those that may end together with a trace, the most likely first."""
        if len(self.of) - self._indexed > COMPARED_EACH:
            self._index()
        if self._indexed:
            first = np.searchsorted(self._end, ends.end - TOGETHER_NS)
            count = np.searchsorted(self._end, ends.end + TOGETHER_NS, "right") - first
            hit = np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
            hits = np.bincount(self._owner[hit], minlength=self._indexed)
            fewer = np.minimum(self._counts, len(ends.end))
            likely = np.flatnonzero(hits > MOST_OF_THEM * fewer - 1)
            for each in likely[np.argsort(-hits[likely], kind="stable")]:
                yield self.of[each]
        yield from self.of[self._indexed :]

    def _index(self) -> None:
        """Sort the ends of all representatives."""
        added = [ends.end for _, ends in self.of[self._indexed :]]
        counts = [len(end) for end in added]
        end = np.concatenate([self._end, *added])
        owner = np.concatenate([self._owner, np.repeat(np.arange(self._indexed, len(self.of)), counts)])
        order = np.argsort(end, kind="stable")
        self._end, self._owner = end[order], owner[order]
        self._counts = np.concatenate([self._counts, np.array(counts, np.int64)])
        self._indexed = len(self.of)


def shared_clocks(digests: Sequence[Digest]) -> dict[str, Move]:
    """Return the moves of islands that share a clock, by island: each onto the island of the first one.

    Only traces that do not state their host are compared. The largest set of them is placed on the common clock if nothing else is.
    """
    kinds: dict[str, int] = {}
    known: dict[str, _Representatives] = defaultdict(_Representatives)
    set_of: list[int] = []
    sets: dict[int, list[tuple[Digest, int]]] = {}
    for number, made in enumerate(each for each in digests if _is_of_unknown_host(each)):
        errors: dict[int, int] = {}
        for group, ends in _ends(made.calls, kinds).items():
            found, most_alike = _sets_together(ends, known[group], set_of)
            for at, error in found.items():
                errors[at] = min(error, errors.get(at, error))
            if most_alike < ALIKE:
                known[group].of.append((number, ends))
        joined = [each for at in sorted(errors) for each in sets.pop(at)]
        set_of = [number if at in errors else at for at in set_of]
        set_of.append(number)
        sets[number] = [*joined, (made, max(errors.values(), default=0))]
    is_placed = any(not each.alignment.island for each in digests)
    moves: dict[str, Move] = {}
    for those in sorted(sets.values(), key=len, reverse=True):
        if len(those) > 1:
            island = those[0][0].alignment.island if is_placed or moves else ""
            moves |= {each.alignment.island: Move(island, 0, error, "shared") for each, error in those}
    return moves


def _sets_together(
    ends: _Ends, known: _Representatives, set_of: Sequence[int]
) -> tuple[dict[int, int], float]:
    """Return the sets of traces that end together with a trace, with the difference [ns], and the largest share of common calls."""
    found: dict[int, int] = {}
    most_alike = 0.0
    for trace, other in known.near(ends):
        if set_of[trace] not in found and (both := _median_apart(ends, other)) is not None:
            found[set_of[trace]], alike = both
            most_alike = max(alike, most_alike)
    return found, most_alike


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
    # calls of two ranks with each other have numbers of their own on each rank
    numbered = np.array([synchronises(word) for word in words], bool)[name]
    seq = np.where(numbered, np.frombuffer(calls.seq, "<i8") if calls.seq else -1, -1)
    group = np.frombuffer(calls.group, "<i4") if calls.group else np.full(len(name), -1, np.int32)
    found = {}
    for at, known in [*enumerate(calls.groups), (-1, None)]:
        which = np.flatnonzero(kept & (group == at))
        which = which[np.argsort(end[which], kind="stable")]
        if len(which):
            found["" if known is None else known.name] = _Ends(end[which], kind[which], seq[which])
    return found


def _median_apart(one: _Ends, other: _Ends) -> tuple[int, float] | None:
    """Return by how much the ends of common calls differ [ns], and the share of these calls; None: they do not end together."""
    if len(other.end) < len(one.end):
        one, other = other, one
    if len(one.end) < MOST_OF_THEM * len(other.end):
        return None
    after = np.searchsorted(other.end, one.end)
    sides = [np.clip(after - back, 0, len(other.end) - 1) for back in (0, 1)]
    distances = [np.abs(other.end[side] - one.end) for side in sides]
    nearest = np.where(distances[0] <= distances[1], sides[0], sides[1])
    apart = np.minimum(*distances)
    numbers = one.seq, other.seq[nearest]
    # steps repeat: a clock that is ahead by one call has another call at the same time
    same = (numbers[0] == numbers[1]) | (numbers[0] < 0) | (numbers[1] < 0)
    together = (apart <= TOGETHER_NS) & (one.kind == other.kind[nearest]) & same
    if together.mean() < MOST_OF_THEM:
        return None
    median = max(int(np.median(apart[together])), READING_NS)
    gaps = np.diff(other.end)
    if len(gaps) and np.median(gaps) < APART * median:
        return None
    return median, int(together.sum()) / len(other.end)
