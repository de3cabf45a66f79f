"""Find calls that run one after the other although they could run at the same time."""

from __future__ import annotations

import re
from functools import partial

from stepprof.analysis.findings.blocked import ONE, Busy, is_lock
from stepprof.analysis.findings.facts import Facts, Part, place_of
from stepprof.analysis.findings.ledger import Ledger, last_part
from stepprof.analysis.findings.signs import COLLECTIVES, LOADER, QUEUES
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.wording import seconds_text

FEWEST = 4
IDLE = 0.5
"""A call counts as waiting if it waits for at least this share of its time."""
JUDGES = re.compile(r"(?<![a-z])(?:reward|rewards|score|scores|judge|verify|grade|tool|sandbox)(?![a-z])")

WAITING = "a pool of threads, or asyncio.gather"
COMPUTING = "a pool of processes if they compute in Python, of threads if they wait or compute in a library"


def serial(ledger: Ledger) -> None:
    """Claim all but the longest of several calls of one region that wait, or that score samples."""
    for part in ledger.parts("work"):
        place = place_of(ledger.facts, part.process, part.role, part.region)
        if place is None or place.calls - place.failed < FEWEST or place.overlap:
            continue  # a call after a failed one repeats it
        if _waits_for_others(ledger.facts, part):
            continue
        names = (part.role or "", *part.region)
        waits = _waits(ledger.facts, part)
        if not any(JUDGES.search(name.lower()) for name in names) and not waits:
            continue
        ledger.claim(
            part,
            part.when,
            "serial",
            f"{part.process} made {place.calls} calls of {inside(part)} one after the other: {{seconds}}",
            why=doing(ledger.facts, part)
            or f"no two calls overlap; the longest took {seconds_text(place.longest)}",
            advice=f"make the calls concurrently: {WAITING if waits else COMPUTING}",
            assumption="all calls run at the same time, and the longest one remains",
            without=partial(_all_but_longest, ledger.facts),
        )


def _all_but_longest(facts: Facts, part: Part) -> Intervals:
    """Return the time of the calls without the longest one."""
    place = place_of(facts, part.process, part.role, part.region)
    return EMPTY if place is None else last_part(part.when, part.when.total - int(place.longest * 1e9))


def _waits_for_others(facts: Facts, part: Part) -> bool:
    """Return whether the thread waited for most of a part for a lock, for a queue, for other ranks, or for several
    threads: more calls at the same time would wait for the same.
    """
    signs = facts.signs[part.process]
    shown = [*signs.shown(part.when)]
    threads = Intervals.of((start, end) for stack, start, end in shown if stack.waits)
    several = len(threads) > 0 and Busy.of(signs.tasks, threads).average >= ONE
    waits = sum(
        end - start
        for stack, start, end in shown
        if is_lock(stack)
        or QUEUES.intersection(stack.modules)
        or LOADER in stack.modules
        or COLLECTIVES in stack.modules
        or (several and stack.waits)
    )
    return 2 * waits >= part.when.total


def _waits(facts: Facts, part: Part) -> bool:
    """Return whether the thread waited in the regions of a part: by its stacks, else by its CPU time.

    A thread that computes on a busy machine uses little CPU time too: what runs operators, or uses the CPU in another process, is no wait.
    """
    signs = facts.signs[part.process]
    if signs.stacks:
        return signs.are_idle(part.when)
    if 2 * (facts.timelines[part.process].computing & part.when).total >= part.when.total:
        return False
    used = {each.process: _cpu_share(facts, each) for each in facts.alike(part)}
    return all(share is None or share < IDLE for share in used.values()) and used[part.process] is not None


def _cpu_share(facts: Facts, part: Part) -> float | None:
    """Return the share of its regions' time that a part used a CPU; None: not known."""
    regions = [
        each
        for each in facts.signs[part.process].regions
        if part.when.clip(each[0], each[1]).total >= 0.9 * (each[1] - each[0])
    ]
    wall = sum(end - start for start, end, _ in regions) / 1e9
    return sum(cpu for _, _, cpu in regions) / wall if wall else None
