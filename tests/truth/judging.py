"""Judge a report by the world that it is about: the truth of a gain is the same world without the cause."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

from stepprof.analysis.findings.wording import SHARE_CPUS
from stepprof.analysis.report.meetings import CLEAR, MOST_APART_NS, TOGETHER_NS, leaves_within
from stepprof.analysis.report.schema import Finding, Report
from truth.planting import ASKING
from truth.scheduling import Line, Ran, run
from truth.worlds import DRIVER, HELD, NEEDED, Action, Cause, Enter, Meet, Name, Spend, Until, World

__all__ = ["Judged", "judged"]

FALSE = 0.05
"""A finding of more than this share of the step must be true."""
MISSED = 0.10
"""A cause whose absence would make the step shorter by more than this share must be found."""
OF_TRACES = frozenset({"host", "memory", "overlap", "pending"})
"""Topics that only traces show."""
ALONE, ELSEWHERE = "in this step alone", "also in"
"""What a reason says about the steps around."""
TOLERANCE = 0.02
"""How far seconds may be off, as a share of the step."""
SHORT = 5
"""How much shorter a process is in a region that it enters after a common time."""
SAMPLED = 0.026
"""How far they may be off at each edge that is known by samples only."""


@dataclass(frozen=True)
class Judged:
    """A cause, and what is true of it."""

    cause: Cause
    spent: dict[Name, float]
    """Its seconds in each process."""
    gain: float
    """How much shorter the step would be without it."""
    displaced: bool = False
    """Whether the recorded step would be as long without it, because the profiler held up another process for longer."""


def truth_of(world: World, ran: Ran) -> list[Judged]:
    """Return what is true of each planted cause of the recorded step."""
    programs = world.steps[world.recorded]
    whole = run(programs, ran.begun, (HELD,)).ns
    found = []
    for cause in world.causes:
        without = run(programs, ran.begun, (HELD, cause.name)).ns
        of = (cause.name, f"{cause.name}{NEEDED}")
        spent = {
            name: sum(
                [
                    *(each.end - each.start for each in line.pieces if each.cause in of),
                    *(each.end - each.start - each.usual for each in line.forwards if each.cause in of),
                ]
            )
            / 1e9
            for name, line in ran.lines.items()
        }
        recorded = ran.ns - run(programs, ran.begun, (cause.name,)).ns
        found.append(Judged(cause, spent, (whole - without) / 1e9, recorded <= FALSE * ran.ns))
    return found


def judged(world: World, ran: Sequence[Ran], report: Report) -> list[str]:
    """Return what is false in a report, or missing."""
    truths = truth_of(world, ran[world.recorded])
    placed = [each for each in report.findings if each.start is not None and not _is_of_device(world, each)]
    about = {
        truth.cause.name: [each for each in placed if _is_about(world, each, truth.cause)] for truth in truths
    }
    known = [each for those in about.values() for each in those]
    known += [each for each in placed if each.topic == "host" and each.region == ASKING]
    known += [each for each in placed if _is_of_common_time(world, ran[world.recorded], each)]
    wrong = [
        f"no such cause: {_text(each)}"
        for each in placed
        if each not in known and (each.seconds or 0.0) > FALSE * report.seconds
    ]
    for truth in truths:
        if about[truth.cause.name]:
            wrong += _false(world, ran[world.recorded], about[truth.cause.name], truth, report)
        elif (
            truth.gain > MISSED * report.seconds
            and not _is_hidden(world, truth.cause)
            and not (truth.displaced and (_is_named(report, truth.cause) or _says_held_up(report)))
            and not (world.capped and any(_is_about(world, each, truth.cause) for each in report.findings))
            and not (world.capped and any(each.topic == "collectives" for each in report.findings))
            and not _met_unseen(world, ran[world.recorded], truth.cause)
        ):
            wrong.append(f"not found: {truth}")
    return wrong


def _is_of_device(world: World, finding: Finding) -> bool:
    """Return whether a finding is about the device of a process without spans: it does nothing during causes of all kinds."""
    return finding.topic in OF_TRACES and name_of(finding.process) in world.lost


def _is_of_common_time(world: World, ran: Ran, finding: Finding) -> bool:
    """Return whether a finding is about work until a common time, for which another rank came too late: it looks like work that it does not have."""
    program = world.steps[world.recorded].get(name_of(finding.process) or 0, [])
    until = any(
        isinstance(after, Until) and isinstance(before, Enter) and before.name == finding.region
        for before, after in pairwise(program)
    )
    ranks = [line for name, line in ran.lines.items() if name in world.on and isinstance(name, int)]
    return until and any(
        _seconds_in(line, finding.region) < FALSE * (finding.seconds or 0.0) for line in ranks
    )


def _seconds_in(line: Line, region: str | None) -> float:
    return sum(each.end - each.start for each in line.regions if each.name == region) / 1e9


def seem_to_meet(ran: Ran) -> bool:
    """Return whether a process left a region as soon as another one had entered it, and that one at once too, as if they had met in it.

    In most regions in which that is so, they have: this is for those without a collective.
    """
    meetings = [each.leave for line in ran.lines.values() for each in line.met]
    return any(
        early.name == late.name
        and wait >= CLEAR * max(abs(early.end - late.end), TOGETHER_NS)
        and 0 <= min(early.end, late.end) - late.start <= leaves_within(wait)
        and abs(early.end - late.end) <= leaves_within(wait) + MOST_APART_NS
        and not any(late.start <= time <= max(early.end, late.end) for time in meetings)
        for one, other in permutations(ran.lines.values(), 2)
        for early, late in product(one.regions, other.regions)
        if (wait := late.start - early.start) > 0
    )


def _may_have_missed(ran: Ran, processes: Collection[Name]) -> bool:
    """Return whether a process entered a region after another one had left it, and left it at once: they may have worked until a common time."""
    return any(
        late.name == early.name
        and late.start > early.end
        and SHORT * (late.end - late.start) < early.end - early.start
        for process in processes
        for other, line in ran.lines.items()
        if other != process
        for late, early in product(ran.lines[process].regions, line.regions)
    )


def _may_have_waited(world: World, truth: Judged) -> bool:
    """Return whether nothing shows that another rank worked after its last meeting: it may have waited for what the cause delayed."""
    programs = world.steps[world.recorded]
    return world.recording == "no evidence" and any(
        _unseen(program) > FALSE * truth.gain * 1e9
        for name, program in programs.items()
        if isinstance(name, int) and name not in truth.cause.processes
    )


def _unseen(program: Sequence[Action]) -> int:
    """Return for how many nanoseconds a process did what no trace shows after it last met others."""
    last = max((at for at, each in enumerate(program) if isinstance(each, Meet)), default=-1)
    rest = program[last + 1 :]
    return sum(each.ns for each in rest if isinstance(each, Spend) and each.doing.operator is None)


def _is_named(report: Report, cause: Cause) -> bool:
    """Return whether a fact without a place names a process of a cause as the one for which others waited."""
    return any(
        each.topic == "straggler" and each.start is None and re.search(rf"for .*rank {name}\b", each.text)
        for each in report.findings
        for name in cause.processes
    )


def _says_held_up(report: Report) -> bool:
    """Return whether the title says that the profiler held the step up for more than a missed cause may take."""
    held = re.search(r"held up by the profiler (\d+)%", report.findings[0].text)
    return held is not None and int(held[1]) >= 100 * MISSED


def _is_hidden(world: World, cause: Cause) -> bool:
    """Return whether what was recorded cannot show a cause."""
    if cause.processes & (world.capped.keys() | world.lost):  # after its end, spans show regions alone
        return True
    if "half_batch" in cause.topics and cause.processes & world.raised:  # how much of a batch was done
        return True
    if cause.region == "generate" and world.engines & world.capped.keys():
        return True  # the driver may have waited for the engine
    others = {name for name in world.on if isinstance(name, int)} - cause.processes
    unnamed = cause.needs_evidence and world.recording == "no evidence"
    if (
        unnamed and cause.around and world.device != "cpu"
    ):  # the device does nothing, with the cause or without
        return True
    shown = cause.topics & {"straggler"} if unnamed else cause.topics
    alone = others <= world.capped.keys() | world.lost | world.raised
    # nor how long they waited, or whether another one, which ended early, is as slow
    if shown == {"straggler"} and (alone or cause.processes & world.raised):
        return True
    if world.recording == "no traces":  # nor where ranks met
        return bool(cause.topics & {*OF_TRACES, "straggler"})
    return not shown  # that one process is late, spans and traces show too


def _met_unseen(world: World, ran: Ran, cause: Cause) -> bool:
    """Return whether the capture of another process had ended when those of a cause met it: for which one waited is not known."""
    seen = {
        name: max(world.captured(name, each.start, each.end) for each in ran.lines[name].windows)
        for name in world.capped
        if ran.lines[name].windows
    }
    return any(
        met.leave > seen[member]
        for name in cause.processes
        for met in ran.lines[name].met
        for member in met.members
        if member in seen and member not in cause.processes
    )


def name_of(label: str | None) -> Name | None:
    """Return the process that a label names."""
    if label is None:
        return None
    if "/" in label:
        return f"engine-{label.rpartition('/')[2].split()[0]}"
    rank = re.search(r"rank (\d+)", label)
    return DRIVER if rank is None else int(rank[1])


def _is_about(world: World, finding: Finding, cause: Cause) -> bool:
    name = name_of(finding.process)
    if finding.topic == "host" and finding.region == ASKING:
        return False
    unnamed = cause.needs_evidence and world.recording == "no evidence"
    waits = world.device != "cpu" and (
        unnamed or _is_hidden(world, cause)
    )  # its device does nothing meanwhile
    return (
        (finding.topic in cause.topics or (waits and finding.topic == "host"))
        and (name is None or name in cause.processes)
        and (
            finding.region in (cause.region, cause.around or cause.region)
            or (finding.region is None and bool((cause.processes | {DRIVER}) & world.lost))
        )
    )


def _false(world: World, ran: Ran, findings: Sequence[Finding], truth: Judged, report: Report) -> list[str]:
    """Return what is false in the findings about a cause. Each moment of the step is in one of them."""
    wrong = []
    within = TOLERANCE * report.seconds + SAMPLED * truth.cause.sampled
    seconds, most = sum(each.seconds or 0.0 for each in findings), max(truth.spent.values())
    texts = "; ".join(map(_text, findings))
    most *= max(len(report.islands), 1)  # each has a path
    least = within if world.capped or world.lost else truth.gain
    if not least - within <= seconds <= most + within:
        wrong.append(f"{seconds:.3f} s, not {truth.gain:.3f} to {most:.3f}: {texts}")
    for each in findings:
        why = each.why or ""
        several = truth.cause.always or truth.cause.every > 0
        if (ALONE in why and several) or (ELSEWHERE in why and not several):
            wrong.append(f"always: {truth.cause.always}, every {truth.cause.every}: {_text(each)}")
        period = re.search(r"every (\d+)", why)
        if period is not None and int(period[1]) != truth.cause.every:
            wrong.append(f"every {truth.cause.every}: {_text(each)}")
        more = re.search(r"it had [\d,]+ (\w+)", why)
        if each.topic == "straggler" and (None if more is None else more[1]) != truth.cause.more:
            wrong.append(f"more {truth.cause.more}: {_text(each)}")
    starved = "straggler" in truth.cause.topics and world.recording != "no evidence" and truth.cause.starved
    for each in findings:
        if (each.advice == SHARE_CPUS) != starved and not _is_hidden(world, truth.cause):
            wrong.append(f"starved: {starved}: {_text(each)}, {each.advice}")
    gains = [each.saves for each in findings]
    late = any(isinstance(each, Until) for each in world.steps[world.recorded].get(0, ()))
    if late and truth.cause.processes.issuperset(name for name in world.on if isinstance(name, int)):
        return wrong  # no rank enters the region earlier than others: nothing shows the common time
    if None in gains:
        if world.waits_known and not (
            len(report.islands) > 1
            or late
            or truth.displaced
            or "pending" in truth.cause.topics  # why the kernels were late is not known
            or world.lost
            or _may_have_waited(world, truth)
            or _may_have_missed(ran, truth.cause.processes)
        ):
            wrong.append(f"no gain, true are {truth.gain:.3f} s: {texts}")
    elif not least - within <= sum(each or 0.0 for each in gains) <= truth.gain + within:
        wrong.append(f"saves {gains} s, not {truth.gain:.3f}: {texts}")
    return wrong


def _text(finding: Finding) -> str:
    return f"[{finding.topic}] {finding.text} ({finding.why}; saves {finding.saves})"
