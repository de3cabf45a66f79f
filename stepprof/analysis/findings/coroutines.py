"""Find coroutines that the thread of the windows waits for: the last of many, or many that run one after the other,
also where a lock or semaphore in their region lets them through one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger, last_part
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.coroutines import LAST, Concurrent
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.wording import quoted, seconds_text
from stepprof.run.evidence import HeldTasks

FEWEST = 4
MOSTLY = 0.8
"""Calls follow each other if they take this share of the time from the first to the last."""
LEAST = 0.15
"""The last calls are no tail if they take at most this share of the time of all calls."""


def last_coroutines(ledger: Ledger) -> None:
    """Claim the time in which at most the last 5 % of concurrent calls were still open."""
    for process, each in _known(ledger):
        last, whole = Intervals.unpack(each.last), Intervals.unpack(each.when)
        part = _part(ledger, process, each, last)
        if each.peak < FEWEST or last.total <= LEAST * whole.total or not _waits(ledger, part):
            continue
        left = max(1, int(LAST * each.peak))
        ledger.claim(
            part,
            part.when,
            "tail",
            f"{process} waited {{seconds}} for the last {'' if left == 1 else f'{left} '}of {each.peak} concurrent calls of {inside(part)}",
            why=f"the longest call took {seconds_text(each.longest)}, the median {seconds_text(each.median)}",
            advice="bound the length of a call, start more calls than needed and drop the last ones, or go on with those that are done",
            assumption="the last calls end with the others",
            without=partial(_last_calls, ledger.facts),
        )


def _last_calls(facts: Facts, part: Part) -> Intervals:
    """Return the time in which the thread of a process waited for the last calls only."""
    calls = facts.coroutines(part.process, part)
    last = part.when & Intervals.all_of(Intervals.unpack(each.last) for each in calls)
    return last if facts.signs[part.process].are_idle(last) else EMPTY


def serial_coroutines(ledger: Ledger) -> None:
    """Claim all but the longest of calls of coroutines that ran one after the other while the thread waited."""
    for process, each in _known(ledger):
        part = _part(ledger, process, each, Intervals.unpack(each.when))
        if each.peak > 1 or each.calls < FEWEST or not _waits(ledger, _sampled(ledger, part)):
            continue
        of = f"{each.tasks} coroutines" if each.tasks > 1 else "one coroutine"
        ledger.claim(
            part,
            part.when,
            "serial",
            f"{process} made {each.calls} calls of {inside(part)} one after the other: {{seconds}}",
            why=f"no two of them, in {of}, were open at the same time; the longest took {seconds_text(each.longest)}",
            advice="let several run at the same time: asyncio.gather, and a higher limit of the semaphore or pool that they pass",
            assumption="all calls run at the same time, and the longest one remains",
            without=partial(_all_but_longest_call, ledger.facts),
        )


def _all_but_longest_call(facts: Facts, part: Part) -> Intervals:
    """Return the time of the calls of a process that ran one after the other, without the longest one."""
    longest = max(
        (each.longest for each in facts.coroutines(part.process, part) if each.peak == 1), default=0.0
    )
    return last_part(part.when, part.when.total - int(longest * 1e9)) if longest else EMPTY


def awaited_calls(ledger: Ledger) -> None:
    """Claim all but the longest of calls without a region that a coroutine awaited one after the other while the thread waited."""
    for process in ledger.facts.timelines:
        for each in ledger.facts.signs[process].awaited:
            when = Intervals.one(each.start_unix_ns, each.end_unix_ns)
            if each.calls < FEWEST or each.seconds * 1e9 < MOSTLY * when.total:
                continue
            parts = [
                replace(part, when=part.when & when, claimed=part.claimed & when)
                for part in ledger.parts("work")
                if part.process == process
            ]
            part = max(parts, key=lambda part: part.when.total, default=None)
            if part is None or not _waits(ledger, part):
                continue
            ledger.claim(
                part,
                part.when,
                "serial",
                f"{process} awaited at least {each.calls} calls of {quoted(each.function)} in {inside(part)} one after the other: {{seconds}}",
                why=f"{quoted(each.caller)} awaited them; the longest took {seconds_text(each.longest_seconds)}",
                advice="let several run at the same time: asyncio.gather; a region in them shows how many they are",
                assumption="all calls run at the same time, and the longest one remains",
                without=partial(_all_but_longest, ledger.facts, each.function),
            )


def _all_but_longest(facts: Facts, function: str, part: Part) -> Intervals:
    """Return the time of the calls of a function that a process awaited in a part, without the longest one."""
    found = EMPTY
    for each in facts.signs[part.process].awaited:
        when = part.when.clip(each.start_unix_ns, each.end_unix_ns)
        if each.function == function and len(when):
            found |= last_part(when, when.total - int(each.longest_seconds * 1e9))
    return found


def held_coroutines(ledger: Ledger) -> None:
    """Claim the time in which at least half of the coroutines waited for a lock or semaphore that at most one had passed."""
    for process, each in _known(ledger):
        held = _held(ledger.facts, process)
        part = _part(ledger, process, each, Intervals.unpack(each.when) & _limited(held))
        if each.peak < FEWEST or not _waits(ledger, part):
            continue
        shown = [(part.when.clip(one.start_unix_ns, one.end_unix_ns).total, one) for one in held]
        _, most = max(shown, key=lambda each: each[0])
        waiting = sum(one.waiting * total for total, one in shown) / part.when.total
        ledger.claim(
            part,
            part.when,
            "serial",
            f"{process} waited {{seconds}} in {inside(part)} while a lock or semaphore in {quoted(most.function)} let through at most one coroutine at a time",
            why=f"{waiting:.1f} coroutines waited for it on average, and at most one was past it",
            advice="raise the limit of the semaphore, or hold the lock for less time",
            assumption="no coroutine waits there",
            without=partial(_held_calls, ledger.facts),
        )


def _held(facts: Facts, process: str) -> list[HeldTasks]:
    return [each for each in facts.signs[process].held if each.passed <= 1 and each.waiting >= each.others]


def _limited(held: Iterable[HeldTasks]) -> Intervals:
    return Intervals.of((each.start_unix_ns, each.end_unix_ns) for each in held)


def _held_calls(facts: Facts, part: Part) -> Intervals:
    """Return the time in which at most one of the coroutines of a process was past a lock."""
    return part.when & _limited(_held(facts, part.process))


def _known(ledger: Ledger) -> Iterator[tuple[str, Concurrent]]:
    for process, timeline in ledger.facts.timelines.items():
        for nest in timeline.nests:
            for each in nest.coroutines:
                yield process, each


def _part(ledger: Ledger, process: str, each: Concurrent, when: Intervals) -> Part:
    """Return the part of `when` in which the process works on the critical path, in the role of the calls."""
    works = [part.when for part in ledger.parts("work") if part.process == process and part.role == each.role]
    return Part(process, each.role, (each.name,), Intervals.all_of(works) & when)


def _sampled(ledger: Ledger, part: Part) -> Part:
    """Return a part until the last stack of its process: its capture may have ended early."""
    stacks = ledger.facts.signs[part.process].stacks
    return replace(part, when=part.when.clip(stacks[0].start, stacks[-1].end) if stacks else EMPTY)


def _waits(ledger: Ledger, part: Part) -> bool:
    """Return whether the stacks show that the thread waited for most of a part."""
    return ledger.facts.signs[part.process].are_idle(part.when)
