"""Find waits of the followed thread during which other threads worked, waited for a lock, or had regions open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepprof.analysis.findings.blocked import ONE, Busy, is_lock
from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.signs import COLLECTIVES, SHORTEST_NS, Stack, Task
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.wording import quoted

FUTURES = "_base.py"
"""The module of `concurrent.futures` in which a thread waits for the results of a pool."""
ASSUMPTION = "the thread does not wait there"
NEARLY_ALL = 0.95


def other_threads(ledger: Ledger) -> None:
    """Claim the waits in which no fewer threads waited for a lock than worked, then those in which they worked."""
    for part in ledger.parts("work", "outside", "handover"):
        found = _others(ledger.facts, part)
        begin = f"{part.process} waited {{seconds}} in {inside(part)} while"
        if found.locked.total >= SHORTEST_NS:
            waiting, working = Busy.of(found.waiting, found.locked), Busy.of(found.working, found.locked)
            ledger.claim(
                part,
                found.locked,
                "lock",
                f"{begin} {waiting.threads} waited in {waiting.label}, in {quoted(waiting.name)}",
                why=f"of the sampled threads {waiting.average:.1f} waited there and {working.average:.1f} worked, on average"
                + _own_line(ledger.facts, part, found.locked),
                advice="if it is a lock or a semaphore, hold it for less time, let more threads through, or give each thread its own data",
                assumption=ASSUMPTION,
                without=(lambda each: _others(ledger.facts, each).locked) if part.region else None,
                of_host=True,
            )
        if found.worked.total >= SHORTEST_NS:
            working = Busy.of(found.working, found.worked)
            more = "give the pool more workers if the calls may run at the same time, "
            ledger.claim(
                part,
                found.worked,
                "threads",
                f"{begin} {working.threads} ran {quoted(working.name)} ({working.label})",
                why=f"{working.average:.1f} other threads were busy on average, {working.share:.0%} of their time in {working.label}"
                + _own_line(ledger.facts, part, found.worked),
                advice=f"if it waited for {'it' if working.average < ONE else 'them'}: {more if working.pool and working.average < ONE else ''}"
                "make the calls faster, or start them earlier; a region in them shows how many they are",
                assumption=ASSUMPTION,
                without=(lambda each: _others(ledger.facts, each).worked) if part.region else None,
                of_host=True,
            )


def other_regions(ledger: Ledger) -> None:
    """Claim the waits in which a region of another thread was open. Only regions of names that one
    thread at a time is in count.
    """
    for part in ledger.parts("work", "outside", "handover"):
        waits = _when(part, _waits(ledger.facts, part))
        found = [
            (waits & Intervals.unpack(other.when), other)
            for nest in ledger.facts.timelines[part.process].nests
            for other in nest.others
            if other.average < ONE
        ]
        longest = max((each.total for each, _ in found), default=0)
        # of regions inside each other that were open nearly all of the time, the innermost says the most
        when, other = min(
            (each for each in found if each[0].total >= NEARLY_ALL * longest),
            key=lambda each: Intervals.unpack(each[1].when).total,
            default=(EMPTY, None),
        )
        if other is not None and when.total >= SHORTEST_NS:
            role = f" (in role {other.role})" if other.role not in (None, other.name) else ""
            ledger.claim(
                part,
                when,
                "threads",
                f"{part.process} waited {{seconds}} in {inside(part)} while another thread was in {quoted(other.name)}{role}",
                why="its stacks show that it waited for another thread" + _own_line(ledger.facts, part, when),
                advice=f"if it waited for {quoted(other.name)}: make that shorter, or start it earlier",
                assumption=ASSUMPTION,
                of_host=True,
            )


def _own_line(facts: Facts, part: Part, when: Intervals) -> str:
    """Return the call and the line in which the thread itself waited for most of some time; empty: there is none."""
    times: Counter[str] = Counter()
    for stack, start, end in _waits(facts, part):
        if stack.line:
            times[stack.activity] += when.clip(start, end).total
    activity, longest = max(times.items(), key=lambda each: each[1], default=("", 0))
    return f"; it waited in {activity}" if 2 * longest >= when.total else ""


@dataclass(frozen=True, slots=True)
class _Others:
    """What other threads did while the thread of the windows waited."""

    waiting: Sequence[Task] = ()
    """What waited for a lock."""
    working: Sequence[Task] = ()
    locked: Intervals = EMPTY
    """No fewer threads waited for a lock than worked."""
    worked: Intervals = EMPTY
    """Threads worked, and none of them had a region."""


def _others(facts: Facts, part: Part) -> _Others:
    signs = facts.signs[part.process]
    if not signs.tasks:
        return _Others()
    waits = _waits(facts, part)
    when = _when(part, waits)
    any_thread = not all(FUTURES in stack.modules[:3] for stack, _, _ in waits)
    tasks = [each for each in signs.tasks if any_thread or each.pool]
    waiting = [each for each in tasks if is_lock(each.stack)]
    working = [each for each in tasks if not is_lock(each.stack)]
    worked = when & Intervals.of((each.stack.start, each.stack.end) for each in working)
    concurrent = Intervals.all_of(
        Intervals.unpack(nest.concurrent) for nest in facts.timelines[part.process].nests
    )
    return _Others(waiting, working, when & _outnumbered(waiting, working), worked - concurrent)


def _waits(facts: Facts, part: Part) -> list[tuple[Stack, int, int]]:
    """Return the stacks of a part that wait for other threads or for coroutines, each with its part."""
    return [
        piece
        for piece in facts.signs[part.process].shown(part.whole)
        if piece[0].waits and COLLECTIVES not in piece[0].modules
    ]


def _when(part: Part, waits: Sequence[tuple[Stack, int, int]]) -> Intervals:
    """Return the time of some stacks of a part."""
    return part.when & Intervals.of((start, end) for _, start, end in waits)


def _outnumbered(waiting: Sequence[Task], working: Sequence[Task]) -> Intervals:
    """Return the time in which no fewer threads waited than worked, and at least one waited."""
    more = Counter[int]()
    some = Counter[int]()
    for each in waiting:
        for counter in (more, some):
            counter[each.stack.start] += 1
            counter[each.stack.end] -= 1
    for each in working:
        more[each.stack.start] -= 1
        more[each.stack.end] += 1
    return _at_least(more, 0) & _at_least(some, 1)


def _at_least(changes: Counter[int], level: int) -> Intervals:
    """Return the time in which a count that changes at some times has a level or more."""
    now, found = 0, []
    for start, end in pairwise(sorted(changes)):
        now += changes[start]
        if now >= level:
            found.append((start, end))
    return Intervals.of(found)
