"""Find out whether a rank is slower than the others in the steps around the recorded one too."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.peers import in_calls
from stepprof.analysis.periodic import every, period

FEWEST_STEPS = 2
MOST_PEERS = 7
OFTEN = 0.9


class Elsewhere(NamedTuple):
    """Whether a rank exceeds the others in other steps too."""

    text: str = ""
    alone: bool = False
    """In no other step."""
    often: bool = False
    """In nearly all of them."""
    length: int | None = None
    """The period of the steps in which it does."""


def in_other_steps(facts: Facts, part: Part, others: Sequence[str], excess: float) -> Elsewhere:
    """Return whether the rank exceeds the others in the steps around this one too.

    In steps that were not recorded, waits for a late rank are part of a region that contains a collective: how long ranks worked in it is not known.
    """
    if facts.neighbours is None or part.name is None or not others:
        return Elsewhere()
    origins = [facts.timelines[label].process.origin for label in (part.process, *others[:MOST_PEERS])]
    mine, *theirs = (facts.neighbours.seconds(origin, part.role, part.name) for origin in origins)
    steps = [step for step in mine if all(step in of for of in theirs)]
    if len(steps) < FEWEST_STEPS or not any(mine[step] for step in steps):  # they have no such region
        return Elsewhere()
    late = [step for step in steps if mine[step] - median(of[step] for of in theirs) > excess / 3]
    if any(meets_in(facts, label, part) for label in (part.process, *others)):
        return Elsewhere()
    if not late:
        return Elsewhere(f"in this step alone: not in {len(steps)} steps around it", alone=True)
    if len(late) == len(steps):
        return Elsewhere(f"also in each of {len(steps)} steps around it", often=True)
    length = period(facts.neighbours.step, late, steps)
    often = len(late) >= OFTEN * len(steps)
    if length is not None and not often:
        return Elsewhere(f"also in {every(length)}", length=length)
    return Elsewhere(f"also in {len(late)} of {len(steps)} steps around it", often=often)


def meets_in(facts: Facts, label: str, part: Part) -> bool:
    """Return whether a process was in collectives in the region of a part and below, by its trace or its stacks."""
    when = facts.inside(label, part).when
    return (
        len(when & in_calls(facts.timelines[label])) > 0 or len(facts.signs[label].in_collectives(when)) > 0
    )
