"""Find time in which a process kept waiting although the awaited work had finished."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.signs import IDLE, SLEEPS
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process

POLLS = "wait for the result itself (a future, a queue) instead of polling for it, or poll more often"
RECEIVES = "it waits for the result itself: see what the awaited process does after its last recorded work, such as sending the result; a region in it shows its time"
RESULT = re.compile(r"(?i)wait|acquire|join|\.get\b|result|recv")
"""Calls that return when the result is there."""
PROGRAMS = "subprocess.py"
"""The module that waits for another program."""
LEAST_SLEPT = 0.1
"""Share of the time that a loop that asks again and again sleeps."""


def poll(ledger: Ledger) -> None:
    """Claim what followed the last forward step, the last sample, or the last rank of a window."""
    facts = ledger.facts
    for part in ledger.parts("handover"):
        what = (
            "the recorded engines had finished"
            if part.role in facts.engine_roles
            else "the recorded ranks had finished"
        )
        _claim(ledger, part, _polls(facts, part), what)
    for part in ledger.parts("work"):
        for when in _after_others(facts, part):
            _claim(ledger, part, when, "its other threads or coroutines had finished", in_all=True)


def _claim(ledger: Ledger, part: Part, when: Intervals, what: str, *, in_all: bool = False) -> None:
    after = Part(part.process, part.role, part.region, when)
    seen, advice = doing(ledger.facts, after), POLLS
    signs = ledger.facts.signs[part.process]
    if signs.share(after.whole, RESULT) >= 0.5 and signs.share(after.whole, SLEEPS) < LEAST_SLEPT:
        advice = RECEIVES
    ledger.claim(
        part,
        when,
        "poll",
        f"{part.process} stayed in {inside(part)} for {{seconds}} after {what}",
        why=seen or "no work was recorded in this time",
        advice=advice if seen else f"if it waits there: {advice}",
        assumption="the window ends when the work ends",
        without=(lambda each: Intervals.all_of(_after_others(ledger.facts, each))) if in_all else None,
    )


def _polls(facts: Facts, part: Part) -> Intervals:
    """Return the time of a part in which its process may wait for what has finished.

    Other threads and coroutines did not work then, and its stacks show no other call, such as one that writes a file or runs a
    program. A call in which it waits for threads that work for half of the time waits for these: samples show their begin and end late.
    """
    signs, timeline = facts.signs[part.process], facts.timelines[part.process]
    working = timeline.activity.others
    other = [
        (start, end)
        for stack, start, end in signs.shown(part.whole)
        if not (stack.waits or stack.names_own or stack.shows(IDLE))
        or PROGRAMS in stack.modules
        or (stack.waits and 2 * working.clip(stack.start, stack.end).total >= stack.end - stack.start)
    ]
    if not signs.stacks and _may_compute(timeline.process, part.when):
        return EMPTY
    concurrent = [Intervals.unpack(nest.concurrent) for nest in timeline.nests]
    return part.when - Intervals.of(other) - Intervals.all_of(concurrent) - working


def _may_compute(process: Process, when: Intervals) -> bool:
    """Return whether the CPU time of the windows around some time suffices to compute for half of it: nothing shows when that was."""
    known = [
        cpu
        for window in process.manifest_windows
        if (edges := process.edges(window)) is not None
        and (cpu := window.get("thread_cpu_seconds")) is not None
        and len(when.clip(*edges))
    ]
    return bool(known) and 2e9 * min(known) >= when.total


def _after_others(facts: Facts, part: Part) -> Iterator[Intervals]:
    """Yield the end of each stretch in which the last region of another thread or coroutine ended earlier,
    and in which the stacks then show that the thread did nothing, and no thread of a pool worked.
    """
    signs = facts.signs[part.process]
    working = Intervals.of((each.stack.start, each.stack.end) for each in signs.tasks if each.pool)
    concurrent = Intervals.all_of(
        Intervals.unpack(nest.concurrent) for nest in facts.timelines[part.process].nests
    )
    for low, high in part.when.pairs():
        inside = concurrent.clip(low, high)
        if len(inside) and int(inside.end[-1]) < high:
            rest = Intervals.one(int(inside.end[-1]), high) - working
            if signs.are_idle(rest):
                yield rest
