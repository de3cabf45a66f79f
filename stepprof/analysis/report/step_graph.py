"""Replay a step in which a cause takes less time: how much earlier would the step have ended?

The graph of a step has the work of each process between its waits, and the waits: in collectives and
where ranks leave a region together, in a driver for engines and ranks, before a window for the
process that opens it or that worked before. The replay keeps what each process does, in its order,
and shortens or lengthens the waits. What the recording takes is left out on both sides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import accumulate, pairwise
from typing import NamedTuple

from stepprof.analysis.report.driver_waits import served
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.meetings import CLEAR, leaves_within
from stepprof.analysis.report.processes import unsure_ns
from stepprof.analysis.report.schema import Slack
from stepprof.analysis.report.timelines import DRIVER, LEAST_NS, Link, Timeline

MOST_WAITS = 20_000
"""The longest waits that are replayed."""
FIXED = 0.05
"""A process that computed but for this share of the time that is taken out would end no earlier."""
LEAST_GAIN_NS = 1_000_000
ALIKE = 0.01
"""Gains that differ by less, or by at most this share, are equal."""


class Wait(NamedTuple):
    """A process waits for another one, from `start` to `end` [ns]."""

    end: int
    start: int
    label: str
    awaited: str
    mutual: bool
    """Whether the other one would wait too if it came first."""
    done: int
    """When the awaited one had finished: before `end` if the other one was not there yet."""


@dataclass(slots=True)
class _Meeting:
    """Waits for one process that end together."""

    awaited: str
    end: int
    mutual: bool
    done: int
    waits: list[Wait] = field(default_factory=list)


class _Gone:
    """The time that is taken out of a process. It tells how much of that is before a given moment."""

    def __init__(self, when: Intervals) -> None:
        self.starts: list[int] = when.start.tolist()
        self.ends: list[int] = when.end.tolist()
        lengths = (end - start for start, end in zip(self.starts, self.ends, strict=True))
        self.sums: list[int] = [0, *accumulate(lengths)]

    def until(self, time: int) -> int:
        """Return the nanoseconds before a time."""
        at = bisect_right(self.starts, time)
        return self.sums[at] - (max(self.ends[at - 1] - time, 0) if at else 0)


_NOTHING = _Gone(EMPTY)


class StepGraph:
    """The processes of one island, and their waits for each other.

    Args:
        known: the processes.
        start: of the step [ns].
        engine_roles: roles in which a process waits for engines.
        waits: the waits of the processes, instead of those that are known: also the possible ones.
    """

    def __init__(
        self,
        known: Sequence[Timeline],
        start: int,
        engine_roles: frozenset[str | None],
        waits: Sequence[Wait] | None = None,
    ) -> None:
        self.start = start
        self.ends = {each.label: each.ends[-1] for each in known if each.stretches}
        self.end = max(self.ends.values(), default=start)
        others: Sequence[Wait] | None = None
        if waits is None:
            waits = _waits(known, start, engine_roles, possible=False)
            others = _waits(known, start, engine_roles, possible=True)
        kept = sorted(waits, key=lambda wait: wait.start - wait.end)[:MOST_WAITS]
        self.waited = _by_process(kept)
        self.meetings = _meetings(kept, known)
        self.group = _groups(self.meetings, [each.label for each in known])
        self.met: dict[str, int] = {}
        """When each process last met another one, or waited for one or kept one waiting [ns]."""
        for meeting in self.meetings:
            for label in (meeting.awaited, *(wait.label for wait in meeting.waits)):
                self.met[label] = max(self.met.get(label, start), meeting.end)
        drivers = {each.label for each in known if each.process.origin.rank == DRIVER}
        self.led = {wait.label for wait in kept if not wait.mutual and wait.awaited in drivers} - drivers
        """The ranks that a driver calls."""
        self.computing = {each.label: each.computing for each in known if len(each.computing)}
        self.deadlines = {each.label: each.deadlines for each in known}
        self.missed = {each.label: [*_missed(each)] for each in known}
        self.held = {each.label: each.held.clip(start, self.end) for each in known if len(each.held)}
        """The profiler is no part of the job: the replay leaves it out."""
        self.unrecorded_end = max(self.replay({}).values(), default=start)
        self._other: StepGraph | None = None
        """The same step, if the possible waits are waits."""
        if others is not None and {*others} != {*waits}:
            self._other = StepGraph(known, start, engine_roles, others)

    def gain(self, without: Mapping[str, Intervals]) -> int | None:
        """Return how much earlier the step would end if processes did not spend some time [ns].

        None: the end would depend on a process whose waits for these processes are not known, or on possible waits; or a process
        would only work longer until a common time.
        """
        for label, when in without.items():
            for since, start, after in self.missed.get(label, ()):
                if when.clip(since, start).total > after + LEAST_GAIN_NS:
                    return None
        for label, when in without.items():
            for until, earlier in self.deadlines.get(label, ()):
                before = when.clip(self.start, until).total
                if before and CLEAR * earlier >= before:
                    return None
        gain = self._gain(without)
        other = gain if self._other is None else self._other.gain(without)
        if gain is None or other is None or abs(gain - other) > max(LEAST_GAIN_NS, ALIKE * min(gain, other)):
            return None
        return min(gain, other)

    def _gain(self, without: Mapping[str, Intervals]) -> int | None:
        ends = self.replay(without)
        if not ends:
            return None
        last = max(ends, key=lambda label: ends[label])
        removed = {label: when for label, when in without.items() if len(when) and label in self.group}
        wanted = {self.group[label] for label in removed}
        # what it does after its last known meeting may be a wait that is not known
        begun = min((int(when.start[0]) for when in removed.values()), default=self.end)
        unknown = 0 if self.met.get(last, self.start) > begun else self.ends[last] - begun
        most = max((when.total for when in removed.values()), default=0)
        follows = self.group[last] in wanted and unknown <= max(FIXED * most, LEAST_GAIN_NS)
        if last not in removed and not follows and not self._is_fixed(last, removed):
            return None
        return self.unrecorded_end - ends[last]

    def _is_fixed(self, label: str, removed: Mapping[str, Intervals]) -> bool:
        """Return whether a process computed from the first of some removed time to its end: it waited for nothing.

        If the profiler held it up for longer or less long than the others after it last met them, that does not show when it would have
        ended without recording.
        """
        if not removed or label not in self.computing:
            return False
        begin, end = min(int(when.start[0]) for when in removed.values()), self.ends[label]
        rest = (Intervals.one(begin, end) - self.computing[label]).total if end > begin else 0
        held = self._held_alone(label)
        apart = max((abs(self._held_alone(each) - held) for each in removed if each in self.ends), default=0)
        return max(rest, apart) <= FIXED * max(when.total for when in removed.values())

    def _held_alone(self, label: str) -> int:
        """Return how long the profiler held a process up between its last known meeting and its end [ns]."""
        return self.held.get(label, EMPTY).clip(self.met.get(label, self.start), self.ends[label]).total

    def replay(self, without: Mapping[str, Intervals]) -> dict[str, int]:
        """Return when each process would end in a step that is not recorded."""
        gone, waits = self._replayed(without)
        return {
            label: end + sum(change for _, change in waits[label]) - gone.get(label, _NOTHING).until(end)
            for label, end in self.ends.items()
        }

    def changed_waits(self) -> dict[str, list[tuple[int, int]]]:
        """Return by how much longer each wait would be without recording, as (end, nanoseconds), by process.

        Where that depends on possible waits, it is the smallest change that may be true.
        """
        changes = self._changes()
        others = changes if self._other is None else self._other._changes()
        return {label: _least_changes(of, others[label]) for label, of in changes.items()}

    def _changes(self) -> dict[str, Counter[int]]:
        found: dict[str, Counter[int]] = {}
        for label, waits in self._replayed({})[1].items():
            of = found[label] = Counter()
            for end, change in waits:
                of[end] += change
        return found

    def _replayed(
        self, without: Mapping[str, Intervals]
    ) -> tuple[dict[str, _Gone], dict[str, list[tuple[int, int]]]]:
        """Return what is taken out of each process, and by how much longer each of its waits is then."""
        gone = {
            label: _Gone(
                (without.get(label, EMPTY) | self.held.get(label, EMPTY)) - self.waited.get(label, EMPTY)
            )
            for label in {*without, *self.held}
        }
        shift: dict[str, int] = dict.fromkeys(self.group, 0)
        waits: dict[str, list[tuple[int, int]]] = {label: [] for label in self.group}
        for meeting in self.meetings:
            of = gone.get(meeting.awaited, _NOTHING)
            together = meeting.done + shift[meeting.awaited] - of.until(meeting.done)
            arrivals = [
                wait.start + shift[wait.label] - gone.get(wait.label, _NOTHING).until(wait.start)
                for wait in meeting.waits
            ]
            together = max(together, *arrivals)
            for wait in meeting.waits:
                mine = gone.get(wait.label, _NOTHING)
                after = together - meeting.end + mine.until(wait.end)
                waits[wait.label].append((wait.end, after - shift[wait.label]))
                shift[wait.label] = after
            if meeting.mutual:
                after = together - meeting.end + of.until(meeting.end)
                # it came last, and did not wait: it would wait in what begins here
                waits[meeting.awaited].append((meeting.end + 1, after - shift[meeting.awaited]))
                shift[meeting.awaited] = after
        return gone, waits

    def spare(self, known: Sequence[Timeline]) -> list[Slack]:
        """Return how much longer each process could have worked in a role before the step ends later, the longest first.

        Where it waits, it works instead. Processes of which no wait in either direction is known are left out, roles whose window ended early
        (an exception, SIGTERM), and those whose slack depends on possible waits.
        """
        found = self._spare(known)
        if self._other is None:
            return found
        others = {(each.process, each.role): each.seconds for each in self._other.spare(known)}
        return [
            each
            for each in found
            if abs(others.get((each.process, each.role), -1.0) - each.seconds) <= LEAST_GAIN_NS / 1e9
        ]

    def _spare(self, known: Sequence[Timeline]) -> list[Slack]:
        allowed = self._allowed()
        found = []
        for each in known:
            rows = allowed.get(each.label)
            if not rows:
                continue
            times = [time for time, _ in rows]
            early = each.process.cut_short()  # how much work it had left is not known
            for role, begins, last in _roles(each):
                if role in early:
                    continue
                at = bisect_left(times, last)
                waited = sum(
                    end - start
                    for start, end in self.waited.get(each.label, EMPTY).pairs()
                    if begins <= start and end <= last
                )
                if at < len(rows):
                    found.append(Slack(each.label, role, (waited + rows[at][1]) / 1e9))
        return sorted(found, key=lambda slack: -slack.seconds)

    def _allowed(self) -> dict[str, list[tuple[int, int]]]:
        """Return for each process by how much its work up to a time may end later, as (time, nanoseconds) in order."""
        last = max(self.ends, key=lambda label: self.ends[label], default="")
        labels = [label for label in self.group if self.group[label] == self.group.get(last)]
        # a driver may need what its ranks have done before the step ends
        late = {
            label: self.end - self.ends[label]
            for label in labels
            if label in self.ends and label not in self.led
        }
        found = {label: [(self.ends[label], late[label])] if label in late else [] for label in labels}
        if len(labels) < 2:
            return {}
        for meeting in reversed(self.meetings):
            if meeting.awaited not in found:
                continue
            members = [wait.label for wait in meeting.waits] + [meeting.awaited] * meeting.mutual
            least = min((late[label] for label in members if label in late), default=None)
            if least is None:
                continue
            for wait in meeting.waits:
                after = least if meeting.mutual else late.get(wait.label, least)
                late[wait.label] = after + wait.end - wait.start
                found[wait.label] += [(wait.end, after), (wait.start, late[wait.label])]
            least += meeting.end - meeting.done
            late[meeting.awaited] = min(least, late.get(meeting.awaited, least))
            found[meeting.awaited].append((meeting.done, late[meeting.awaited]))
        return {label: sorted(rows) for label, rows in found.items()}


def _least_changes(one: Mapping[int, int], other: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the changes, by time, that are sure if one of two lists is true.

    Until each time they add up to the smaller of the two sums, and to 0 if one list makes it longer and the other shorter.

    >>> _least_changes({1: -370, 2: 220}, {1: -370})
    [(1, -370), (2, 220)]
    """
    sums, found = [0, 0, 0], []
    for time in sorted({*one, *other}):
        first, second, before = sums[0] + one.get(time, 0), sums[1] + other.get(time, 0), sums[2]
        sums = [first, second, min(first, second, key=abs) if first * second > 0 else 0]
        if sums[2] != before:
            found.append((time, sums[2] - before))
    return found


def _roles(each: Timeline) -> Iterator[tuple[str | None, int, int]]:
    """Yield each role of a process, with the first begin and the last end of its work in it."""
    if len(each.generating):
        yield each.process.origin.role, int(each.generating.start[0]), int(each.generating.end[-1])
    bounds: dict[str | None, tuple[int, int]] = {}
    for begin, end, role, _ in each.stretches:
        bounds[role] = bounds.get(role, (begin, end))[0], end
    for role, (begin, end) in bounds.items():
        yield role, begin, end


def _missed(each: Timeline) -> Iterator[tuple[int, int, int]]:
    """Yield when a process may have come too late for a common time, as (end of its call before, begin, nanoseconds by which it was late)."""
    calls = each.communicating | each.unmatched | each.waiting
    for start, after in each.missed:
        at = int(calls.end.searchsorted(start, side="right"))
        yield int(calls.end[at - 1]) if at else 0, start, after


def _waits(
    known: Sequence[Timeline], start: int, engine_roles: frozenset[str | None], *, possible: bool
) -> list[Wait]:
    return [
        *_between_ranks(known, possible=possible),
        *_of_windows(known, start, engine_roles, possible=possible),
    ]


def _between_ranks(known: Sequence[Timeline], *, possible: bool) -> Iterator[Wait]:
    """Yield the waits in collectives, and where ranks meet in a region; of very many only the longest."""
    labels = {each.label for each in known}
    links = {each.label: _longest(each.waits, each.maybe if possible else ()) for each in known}
    lengths = [end - start for each in links.values() for start, end, _ in each]
    least = nlargest(MOST_WAITS, lengths)[-1] if len(lengths) > MOST_WAITS else 0
    for each in known:
        for start, end, awaited in links[each.label]:
            if end - start >= least and awaited in labels and awaited != each.label:
                yield Wait(end, start, each.label, awaited, True, end)


def _longest(waits: Sequence[Link], more: Sequence[Link]) -> list[Link]:
    """Return waits, the longest one of those for the same process that end together."""
    if not more:
        return [*waits]
    begins: dict[tuple[int, str], int] = {}
    for start, end, awaited in (*waits, *more):
        begins[end, awaited] = min(start, begins.get((end, awaited), start))
    return [(start, end, awaited) for (end, awaited), start in begins.items()]


def _of_windows(
    known: Sequence[Timeline], start: int, engine_roles: frozenset[str | None], *, possible: bool
) -> Iterator[Wait]:
    """Yield the waits of drivers for engines and ranks, and of these for the driver."""
    by_label = {each.label: each for each in known}
    opened = _Windows(known)
    openers: dict[tuple[int, int, str], tuple[int, str]] = {}
    for label, waits in served(known, engine_roles).items():
        each = by_label[label]
        for wait in waits:
            yield Wait(wait.end, wait.start, label, wait.label, False, wait.done)
            engine = by_label[wait.label]
            if len(engine.generating):
                inside = each.before(wait.end)
                begin = wait.start if inside is None else inside[0]
                opening = _opening(engine, begin, wait.end, start)
                if opening is not None:
                    openers[opening] = max(openers.get(opening, (begin, label)), (begin, label))
    for each in known:
        yield from _before_windows(each, opened, start, possible=possible)
    for (began, since, label), (_, opener) in openers.items():
        yield Wait(began, since, label, opener, False, began)


def _opening(engine: Timeline, begin: int, end: int, start: int) -> tuple[int, int, str] | None:
    """Return when an engine first began to generate between two times, and since when it had not: (begin, end before, label)."""
    starts, finishes = engine.generating.start, engine.generating.end
    at = int(starts.searchsorted(begin))
    if at == len(starts) or starts[at] >= end:
        return None
    since = int(finishes[at - 1]) if at else min(start, int(starts[at]))
    return int(starts[at]), since, engine.label


def _before_windows(each: Timeline, opened: _Windows, start: int, *, possible: bool) -> Iterator[Wait]:
    """Yield what a process waits for between its windows: the driver that opens the next one, otherwise
    the process whose window ended last, if the next one begins as soon as that. If it begins later, the wait is possible.
    """
    bounds = [(start, start), *((stretch[0], stretch[1]) for stretch in each.stretches)]
    for number, ((_, ended), (opened_at, _)) in enumerate(pairwise(bounds)):
        begin, _ = each.with_held(opened_at, opened_at)
        # before it waits, the profiler stops
        since = each.with_held(ended, ended)[1] if number else ended
        if begin - since < LEAST_NS:
            continue
        driver = opened.driver(each, begin, each.stretches[number][2])
        if driver is not None:
            yield Wait(begin, since, each.label, driver.label, False, begin)
            continue
        last, awaited = opened.last_end(each, since, begin)
        if awaited is not None and (possible or begin - last <= leaves_within(last - since)):
            yield Wait(last, since, each.label, awaited.label, False, last)


class _Windows:
    """The windows of all processes: which is open, and which ended last."""

    def __init__(self, known: Sequence[Timeline]) -> None:
        having = [each for each in known if each.stretches]
        self._drivers = [each for each in having if not each.is_rank]
        ends = sorted((end, -number) for number, each in enumerate(having) for end in {*each.window_ends})
        self._ends = [end for end, _ in ends]
        self._of = [having[-number] for _, number in ends]

    def driver(self, each: Timeline, time: int, role: str | None) -> Timeline | None:
        """Return the process that opens a window of a rank: one without a number that is in a window of its
        role at this time, otherwise the driver that is in any window.
        """
        if not each.is_rank:
            return None
        found = None
        for other in self._drivers:
            inside = other.before(time + LEAST_NS)  # a rank may begin with the window that calls it
            if inside is not None and inside[1] > time and _comparable(each, other):
                if inside[2] == role:
                    return other
                found = other if other.process.origin.rank == DRIVER else found
        return found

    def last_end(self, each: Timeline, since: int, time: int) -> tuple[int, Timeline | None]:
        """Return the last end of a window of another process between two times."""
        for at in range(bisect_right(self._ends, time) - 1, -1, -1):
            if self._ends[at] <= since:
                break
            if self._of[at] is not each and _comparable(each, self._of[at]):
                return self._ends[at], self._of[at]
        return since, None


def _comparable(one: Timeline, other: Timeline) -> bool:
    return unsure_ns(one.process, other.process) is not None


def _meetings(waits: Sequence[Wait], known: Sequence[Timeline]) -> list[_Meeting]:
    """Return the waits that end together as one, in order."""
    error = {each.label: 2 * (each.process.error_ns or 0) + LEAST_NS for each in known}
    found: list[_Meeting] = []
    open_ones: dict[str, _Meeting] = {}
    for wait in sorted(waits):
        if not wait.mutual:
            found.append(_Meeting(wait.awaited, wait.end, False, wait.done, [wait]))
            continue
        meeting = open_ones.get(wait.awaited)
        if (
            meeting is None
            or wait.end - meeting.end > error[wait.label]
            or any(other.label == wait.label for other in meeting.waits)
        ):
            meeting = open_ones[wait.awaited] = _Meeting(wait.awaited, wait.end, True, wait.end)
            found.append(meeting)
        meeting.waits.append(wait)
    return found


def _by_process(waits: Sequence[Wait]) -> dict[str, Intervals]:
    of: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for wait in waits:
        of[wait.label].append((wait.start, wait.end))
    return {label: Intervals.of(those) for label, those in of.items()}


def _groups(meetings: Sequence[_Meeting], labels: Sequence[str]) -> dict[str, int]:
    """Return the number of the group of each process: those of a group wait for each other, also through others."""
    group = {label: number for number, label in enumerate(labels)}
    members: dict[int, list[str]] = {number: [label] for label, number in group.items()}
    for meeting in meetings:
        for wait in meeting.waits:
            one, other = group[meeting.awaited], group[wait.label]
            if one != other:
                for label in members[other]:
                    group[label] = one
                members[one] += members.pop(other)
    return group
