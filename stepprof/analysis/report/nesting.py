"""Follow a source's nested windows and regions: which region is innermost at each moment.

A window and its regions are on the thread that opened the window, or on the row of coroutines. Of a thread that awaits
its coroutines one after the other, their regions count as its own. There,
the region that opened last and is still open is the innermost one. Of threads that open windows
concurrently, one is followed (`Chosen.followed`). Coroutines that go on after the last window are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from stepprof.analysis.report.containment import NOWHERE, containers
from stepprof.analysis.report.coroutines import Concurrent, concurrent_calls, sequential_calls
from stepprof.analysis.report.intervals import Indices, Intervals, Moments, Times
from stepprof.analysis.report.slice_kinds import Chosen
from stepprof.analysis.report.window_threads import followed_threads
from stepprof.analysis.timeline.distinct import distinct
from stepprof.analysis.timeline.model import Slices, Source
from stepprof.run.amounts import amounts, empty_share

MOST_SLICES = 20_000
"""Shorter windows and regions beyond this number are left out: their time is that of the region around them."""
MOST_PLACES = 2_000
MOST_CONCURRENT = 4096


class Place(msgspec.Struct, frozen=True):
    """A window or region with those around it."""

    parent: int
    """Its index among the places; `NOWHERE`: nothing is around it."""
    name: str
    role: str | None
    window: bool
    calls: int
    total: Moments
    """Packed intervals in which it was open, at most `STRETCHES`."""
    longest: float
    """Seconds of its longest call."""
    amounts: dict[str, float] = {}
    """Sums of the attributes ``tokens``, ``samples`` and ``batch_size``; only of those that each of its calls states."""
    overlap: bool = False
    """Whether two of its calls overlap: they are of different coroutines."""
    failed: int = 0
    """How many of its calls ended with an exception, or with the process."""
    empty: float | None = None
    """Share of its time on empty places of its batches; None: not each call states ``samples`` and ``batch_size``."""


STRETCHES = 64
MOST_OTHERS = 16


class Other(msgspec.Struct, frozen=True):
    """The regions of one name, or the windows of one role, in threads that are not followed."""

    name: str
    role: str | None
    when: Moments
    """Packed intervals in which one was open, at most `STRETCHES`."""
    average: float
    """How many were open at the same time in them, on average; 1 if none overlaps."""


class Nest(msgspec.Struct, frozen=True):
    """The innermost place at each moment, as packed columns: start, end [ns], place."""

    places: list[Place] = []
    start: Moments = b""
    end: Moments = b""
    place: bytes = b""
    concurrent: Moments = b""
    """Packed intervals in which regions of other threads and of coroutines were open."""
    others: list[Other] = []
    """The longest of these regions that are in threads."""
    coroutines: list[Concurrent] = []
    """The calls of coroutines of the thread that opened the windows."""
    thread: int | None = None
    """The native id of the followed thread; None: not known."""

    def stretches(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, place) in the order of time."""
        columns = (np.frombuffer(column, "<i8").tolist() for column in (self.start, self.end, self.place))
        yield from zip(*columns, strict=True)

    def path(self, place: int) -> tuple[str, ...]:
        """Return the names of the regions around a place and of itself, without windows."""
        names: list[str] = []
        while place != NOWHERE:
            each = self.places[place]
            if not each.window:
                names.append(each.name)
            place = each.parent
        return tuple(reversed(names))


def nest_of(source: Source, chosen: Chosen) -> Nest | None:
    """Return the nesting of the followed threads and their coroutines; None: there is none."""
    slices = source.slices
    which = distinct(chosen.windows, chosen.regions)
    opened = chosen.windows if len(chosen.windows) else which[chosen.are_windows(which)]
    concurrent, thread = which[:0], None
    if len(opened):
        followed, thread = followed_threads(source, chosen, opened)
        tracks = np.array(followed)
        if source.origin.kind != "spans" and len(chosen.regions):  # a trace has windows on a row of their own
            least = int(tracks.max()) + 1
            spent = np.bincount(slices.track[chosen.regions], slices.duration[chosen.regions], least)
            spent[tracks] = 0
            tracks = np.append(tracks, spent.argmax())
        awaited = sequential_calls(source, chosen)
        own = (np.isin(slices.track[which], tracks) | np.isin(which, awaited)) & ~_outlives(
            slices, which, opened
        )
        which, concurrent = which[own], which[~own]
    if not len(which):
        return None
    if len(which) > MOST_SLICES:
        longest = np.argpartition(-slices.duration[which], MOST_SLICES)[:MOST_SLICES]
        which = np.sort(which[longest])
    which = which[np.lexsort((-slices.duration[which], slices.start[which]))]
    nest = _Sweep(source, chosen, which, set(opened.tolist())).nest()
    return msgspec.structs.replace(
        nest,
        concurrent=chosen.when(concurrent).coarse(MOST_CONCURRENT)[0].pack(),
        others=_others(source, chosen, concurrent),
        coroutines=concurrent_calls(source, chosen),
        thread=thread,
    )


def _others(source: Source, chosen: Chosen, concurrent: Indices) -> list[Other]:
    """Return the longest of the regions and roles of other threads."""
    slices = source.slices
    found: dict[tuple[str, str | None], list[int]] = {}
    for at, role in zip(concurrent.tolist(), chosen.roles(concurrent), strict=True):
        if source.tracks[slices.track[at]].kind == "thread":
            found.setdefault((source.names[slices.name[at]], role), []).append(at)
    sets = {key: chosen.when(np.array(which)) for key, which in found.items()}
    longest = sorted(sets, key=lambda key: -sets[key].total)[:MOST_OTHERS]
    return [
        Other(
            *key,
            sets[key].coarse(STRETCHES)[0].pack(),
            int(slices.duration[found[key]].sum()) / max(sets[key].total, 1),
        )
        for key in longest
    ]


def _outlives(slices: Slices, which: Indices, opened: Indices) -> npt.NDArray[np.bool_]:
    """Return which slices are of coroutines that go on after the last window: the step does not wait for them."""
    if slices.task is None:
        return np.zeros(len(which), np.bool_)
    end = slices.start + slices.duration
    later = which[end[which] > end[opened].max()]
    return np.isin(slices.task[which], slices.task[later]) & (slices.task[which] >= 0)


def innermost(start: Times, end: Times) -> tuple[Times, Times, Indices]:
    """Return when which of some slices is innermost, as three columns: start, end, index.

    Args:
        start: in order. Of two that start together, the longer one comes first.
        end: of each.
    """
    found = np.array([*_innermost(start.tolist(), end.tolist())], np.int64).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2].astype(np.intp)


def _innermost(starts: list[int], ends: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, slice): between two moments at which a slice opens or closes, the last opened is innermost."""
    opened: list[int] = []  # the last to open first
    closing: list[tuple[int, int]] = []
    last = 0
    at = 0
    while at < len(starts) or closing:
        opens = at < len(starts) and (not closing or starts[at] < closing[0][0])
        now = starts[at] if opens else closing[0][0]
        while opened and ends[-opened[0]] <= last:
            heappop(opened)
        if opened and now > last:
            yield last, now, -opened[0]
        last = now
        if opens:
            heappush(opened, -at)
            heappush(closing, (ends[at], at))
            at += 1
        else:
            heappop(closing)


class _Sweep:
    """Goes through the slices by time, and keeps those that are open."""

    def __init__(self, source: Source, chosen: Chosen, which: Indices, opened: set[int]) -> None:
        slices = source.slices
        self.names = [source.names[name] for name in slices.name[which].tolist()]
        self.windows = [at in opened for at in which.tolist()]
        self.roles = chosen.roles(which)
        tasks = [-1] * len(which) if slices.task is None else slices.task[which].tolist()
        self.tasks = [
            None if task < 0 or window else task for task, window in zip(tasks, self.windows, strict=True)
        ]
        attributes = attributes_of(source, which)
        self.amounts = [amounts(each) for each in attributes]
        self.failed = [ended_early(each) for each in attributes]
        self.start = slices.start[which].tolist()
        self.end = (slices.start[which] + slices.duration[which]).tolist()
        self.numbers: dict[tuple[int, str, str | None, bool], int] = {}
        self.keys: list[tuple[int, str, str | None, bool]] = []
        self.members: list[list[int]] = []
        self.stretches: list[tuple[int, int, int]] = []

    def nest(self) -> Nest:
        """Return the places that were swept."""
        place_of = self._places()
        for begin, until, at in _innermost(self.start, self.end):
            self._add(begin, until, place_of[at])
        start, end, place = (
            np.array(column, "<i8").tobytes() for column in zip(*self.stretches, strict=True)
        ) if self.stretches else (b"", b"", b"")  # fmt: skip
        return Nest([*self._made()], start, end, place)

    def _places(self) -> list[int]:
        """Return the place of each slice: what it is, inside the innermost slice that contains it."""
        place_of: list[int] = []
        for at, around in enumerate(containers(self.start, self.end, self.names, self.tasks)):
            parent = NOWHERE if around == NOWHERE else place_of[around]
            key = (parent, self.names[at], self.roles[at], self.windows[at])
            if parent != NOWHERE and not self.windows[at] and self.keys[parent][1:] == key[1:]:
                place_of.append(parent)  # a region inside one of its name is the same region
                continue
            if key not in self.numbers and len(self.numbers) >= MOST_PLACES:
                place_of.append(parent)
                continue
            number = self.numbers.setdefault(key, len(self.numbers))
            if number == len(self.members):
                self.members.append([])
                self.keys.append(key)
            self.members[number].append(at)
            place_of.append(number)
        return place_of

    def _add(self, start: int, end: int, place: int) -> None:
        if self.stretches and self.stretches[-1][1:] == (start, place):
            self.stretches[-1] = (self.stretches[-1][0], end, place)
        else:
            self.stretches.append((start, end, place))

    def _made(self) -> Iterator[Place]:
        for (parent, name, role, window), members in zip(self.numbers, self.members, strict=True):
            when = Intervals.of((self.start[at], self.end[at]) for at in members)
            packed = when.coarse(STRETCHES)[0].pack()
            longest = max(self.end[at] - self.start[at] for at in members) / 1e9
            yield Place(
                parent,
                name,
                role,
                window,
                len(members),
                packed,
                longest,
                self._sums(members),
                any(self.end[one] > self.start[other] for one, other in pairwise(members)),
                sum(self.failed[at] for at in members),
                self._empty(members),
            )

    def _sums(self, members: list[int]) -> dict[str, float]:
        stated = [self.amounts[at] for at in members]
        return {
            key: sum(each[key] for each in stated) for key in stated[0] if all(key in each for each in stated)
        }

    def _empty(self, members: list[int]) -> float | None:
        stated = [self.amounts[at] for at in members]
        if not all("samples" in each and "batch_size" in each for each in stated):
            return None
        return empty_share(
            [
                (self.end[at] - self.start[at], each["samples"], each["batch_size"])
                for at, each in zip(members, stated, strict=True)
            ]
        )


def ended_early(attributes: Mapping[str, object]) -> bool:
    """Return whether a span ended by an exception, SIGTERM, or the end of the session."""
    return attributes.get("error") is True or "unfinished" in attributes


def attributes_of(source: Source, which: Indices) -> list[Mapping[str, object]]:
    """Return the attributes of each slice, if it has one of `_KEYS`; only spans have attributes."""
    args = source.slices.args
    if args is None or source.origin.kind != "spans":
        return [{}] * len(which)
    return [_decoded(args[at] or b"") for at in which.tolist()]


@lru_cache(maxsize=4096)
def _decoded(raw: bytes) -> Mapping[str, object]:
    if not any(key in raw for key in _KEYS):
        return {}
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


_KEYS = (b'"tokens"', b'"samples"', b'"batch_size"', b'"error"', b'"unfinished"')
