"""Judge a report by the world that it is about: the truth of a gain is the same world without the cause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepprof.analysis.report.schema import Finding, Report
from truth.scheduling import Ran, run
from truth.worlds import DRIVER, HELD, Cause, Name, World

__all__ = ["Judged", "judged"]

FALSE = 0.05
"""A finding of more than this share of the step must be true."""
MISSED = 0.10
"""A cause whose absence would make the step shorter by more than this share must be found."""
TOLERANCE = 0.02
"""How far seconds may be off, as a share of the step."""
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


def truth_of(world: World, ran: Ran) -> list[Judged]:
    """Return what is true of each planted cause of the recorded step."""
    programs = world.steps[world.recorded]
    starts = {name: min(line.clock for line in ran.lines.values()) for name in programs}
    whole = run(programs, starts, (HELD,)).ns
    found = []
    for cause in world.causes:
        without = run(programs, starts, (HELD, cause.name)).ns
        spent = {
            name: sum(each.end - each.start for each in line.pieces if each.cause == cause.name) / 1e9
            for name, line in ran.lines.items()
        }
        found.append(Judged(cause, spent, (whole - without) / 1e9))
    return found


def judged(world: World, ran: Sequence[Ran], report: Report) -> list[str]:
    """Return what is false in a report, or missing."""
    truths = truth_of(world, ran[world.recorded])
    wrong = []
    placed = [each for each in report.findings if each.start is not None]
    for finding in placed:
        of = [truth for truth in truths if _is_about(finding, truth.cause)]
        if not of:
            if (finding.seconds or 0.0) > FALSE * report.seconds:
                wrong.append(f"no such cause: {_text(finding)}")
        else:
            wrong += _false(finding, of[0], report.seconds)
    for truth in truths:
        if truth.gain > MISSED * report.seconds and not any(_is_about(each, truth.cause) for each in placed):
            wrong.append(f"not found: {truth}")
    return wrong


def name_of(label: str | None) -> Name | None:
    """Return the process that a label names."""
    if label is None:
        return None
    if "/" in label:
        return f"engine-{label.rpartition('/')[2].split()[0]}"
    rank = re.search(r"rank (\d+)", label)
    return DRIVER if rank is None else int(rank[1])


def _is_about(finding: Finding, cause: Cause) -> bool:
    name = name_of(finding.process)
    return (
        finding.topic in cause.topics
        and (name is None or name in cause.processes)
        and finding.region == cause.region
    )


def _false(finding: Finding, truth: Judged, length: float) -> list[str]:
    """Return what is false in a finding about a cause."""
    wrong = []
    within = TOLERANCE * length + SAMPLED * truth.cause.sampled
    seconds, most = finding.seconds or 0.0, max(truth.spent.values())
    if not truth.gain - within <= seconds <= most + within:
        wrong.append(f"{seconds:.3f} s, not {truth.gain:.3f} to {most:.3f}: {_text(finding)}")
    if finding.saves is None:
        wrong.append(f"no gain, true are {truth.gain:.3f} s: {_text(finding)}")
    elif abs(finding.saves - truth.gain) > within:
        wrong.append(f"saves {finding.saves:.3f} s, not {truth.gain:.3f}: {_text(finding)}")
    return wrong


def _text(finding: Finding) -> str:
    return f"[{finding.topic}] {finding.text} ({finding.why}; saves {finding.saves})"
