"""Judge what a report says about the steps around the recorded one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from stepprof.analysis.report.schema import Neighbourhood, Report
from truth.judging import SAMPLED, name_of
from truth.scheduling import Line, Ran, run
from truth.worlds import HELD, Name, World

__all__ = ["false_neighbourhood"]

EXACT = 0.001
"""How far the time of a step may be off [s]."""
SHARE = 0.01
"""The same as a share, if a rank's spans are missing, or its capture ended."""
USUAL, UNUSUAL = 0.02, 0.12
"""The difference from the median of the others, as a share, below which a step is typical, and above which it is not."""


def false_neighbourhood(world: World, ran: Sequence[Ran], report: Report) -> list[str]:
    """Return what is false about the steps around the recorded one."""
    around = report.neighbourhood
    if around is None:
        return ["no neighbourhood"]
    name = name_of(around.process)
    assert name is not None
    wrong = []
    programs, begun = world.steps[world.recorded], ran[world.recorded].begun
    own = _seconds(run(programs, begun, (HELD,)), name)
    for each in around.steps:
        true = _seconds(ran[each.step], name)
        # the recording makes a process longer that waits for others, and shorter one for which these wait
        unrecorded = own if each.step == world.recorded else true
        exact = abs(each.seconds - unrecorded) <= EXACT
        if not world.waits_known:  # which processes waited for which is not always known
            # nor when a rank came whose spans are missing or whose capture ended
            within = SHARE * true if world.lost or world.capped else EXACT
            within += SAMPLED if world.recording == "no traces" else 0.0  # samples show when it waited
            exact = min(unrecorded, true) - within <= each.seconds <= max(unrecorded, true) + within
        if not world.waits_known and len(report.islands) > 1:
            exact = True  # nor is it known on several clocks
        if not exact or each.recorded != (each.step == world.recorded):
            wrong.append(f"step {each.step} took {true:.3f} s in {around.process}, not {each.seconds:.3f}")
    if world.waits_known:
        wrong += _false_parts(around, run(programs, begun, (HELD,)).lines[name])
    others = median(_seconds(each, name) for number, each in enumerate(ran) if number != world.recorded)
    apart = abs(own / others - 1)
    typical = around.parts[0].typical if around.parts else None
    if typical is None and around.parts and _held_apart(ran[world.recorded]) > USUAL * others:
        return wrong  # the recording displaced the processes: what they would have waited is not known
    if typical is not True and apart < USUAL:
        wrong.append(f"typical ({own:.3f} s, others {others:.3f}): {around.text}")
    if typical is not False and apart > UNUSUAL:
        wrong.append(f"not typical ({own:.3f} s, others {others:.3f}): {around.text}")
    return wrong


def _held_apart(ran: Ran) -> float:
    """Return by how much the times differ for which the recording held processes up before their windows [s]."""
    held = [sum(window.arm + window.begin for window in line.windows) for line in ran.lines.values()]
    return (max(held) - min(held)) / 1e9


def _false_parts(around: Neighbourhood, line: Line) -> Iterator[str]:
    """Yield the roles and regions whose time is not that without recording."""
    for each in around.parts[1:]:
        ranges = line.windows if each.region is None else line.regions
        lengths = [of.end - of.start for of in ranges if (each.region or each.role) in (of.name, of.role)]
        true = sum(lengths) / 1e9
        if abs((each.seconds or 0.0) - true) > EXACT * max(len(lengths), 1):
            yield f"{each.region or each.role} took {true:.3f} s in {around.process} without recording, not {each.seconds} s"


def _seconds(ran: Ran, name: Name) -> float:
    """Return how long a step took in a process."""
    windows = ran.lines[name].windows
    return (windows[-1].end - windows[0].start) / 1e9
