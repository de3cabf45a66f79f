"""Find waits of the windows' thread during which other threads worked, or waited for a lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stepprof.analysis.findings.blocked import is_lock
from stepprof.analysis.findings.busy import ONE, Busy
from stepprof.analysis.findings.facts import (
    COLLECTIVES,
    EVENT_LOOP,
    SHORTEST_NS,
    Facts,
    Ledger,
    Part,
    Task,
)
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import EMPTY, Intervals

__all__ = ["other_threads"]

FUTURES = "_base.py"
"""The module of `concurrent.futures` in which a thread waits for the results of a pool."""
ASSUMPTION = "the thread does not wait there"


def other_threads(ledger: Ledger) -> None:
    """Claim the waits in which no fewer threads waited for a lock than worked, then those in which they worked."""
    for part in ledger.parts("work", "outside", "handover"):
        alike = {each.process: _others(ledger.facts, each) for each in ledger.facts.alike(part)}
        found = _others(ledger.facts, part)
        begin = f"{part.process} waited {{seconds}} in {inside(part)} while"
        if found.locked.total >= SHORTEST_NS:
            waiting, working = Busy.of(found.waiting, found.locked), Busy.of(found.working, found.locked)
            ledger.claim(
                part,
                found.locked,
                "lock",
                f"{begin} {waiting.threads} waited in {waiting.label}, in `{waiting.name}`",
                why=f"of the sampled threads {waiting.average:.1f} waited there and {working.average:.1f} worked, on average",
                advice="if it is a lock or a semaphore, hold it for less time, let more threads through, or give each thread its own data",
                assumption=ASSUMPTION,
                without={process: each.locked for process, each in alike.items()} if part.region else None,
            )
        if found.worked.total >= SHORTEST_NS:
            working = Busy.of(found.working, found.worked)
            more = "give the pool more workers if the calls may run at the same time, "
            ledger.claim(
                part,
                found.worked,
                "threads",
                f"{begin} {working.threads} ran `{working.name}` ({working.label})",
                why=f"{working.average:.1f} other threads were busy on average, {working.share:.0%} of their time in {working.label}",
                advice=f"if it waited for {'it' if working.average < ONE else 'them'}: {more if working.pool and working.average < ONE else ''}"
                "make the calls faster, or start them earlier; a region in them shows how many they are",
                assumption=ASSUMPTION,
                without={process: each.worked for process, each in alike.items()} if part.region else None,
            )


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
    signs = facts.signs.get(part.process)
    if signs is None or not signs.tasks:
        return _Others()
    waits = [
        piece
        for piece in signs.shown(part.when)
        if (piece[0].waits or piece[0].modules[:2] == EVENT_LOOP) and COLLECTIVES not in piece[0].modules
    ]
    when = part.when & Intervals.union([start for _, start, _ in waits], [end for _, _, end in waits])
    any_thread = not all(FUTURES in stack.modules[:3] for stack, _, _ in waits)
    tasks = [each for each in signs.tasks if any_thread or each.pool]
    waiting = [each for each in tasks if is_lock(each.stack)]
    working = [each for each in tasks if not is_lock(each.stack)]
    worked = when & Intervals.union(
        [each.stack.start for each in working], [each.stack.end for each in working]
    )
    beside = Intervals.all_of(Intervals.unpack(nest.beside) for nest in facts.timelines[part.process].nests)
    return _Others(waiting, working, when & _outnumbered(waiting, working), worked - beside)


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
    return Intervals.union([start for start, _ in found], [end for _, end in found])
