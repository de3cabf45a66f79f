"""Find work that most of the steps around do not have, such as a benchmark after every hundredth step."""

from __future__ import annotations

from functools import partial

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import doing, having_of, inside, rest_of

FEWEST_STEPS = 3
MOST = 1 / 3
"""Work is rare if this share of the steps around has it, or less."""


def rare_work(ledger: Ledger) -> None:
    """Claim regions that few of the steps around have."""
    for part in ledger.merged(partial(rare_place, ledger.facts), "work", "communication"):
        having = having_of(ledger.facts, part, part.region[-1])
        if having is None:
            continue
        ledger.claim(
            part,
            part.when,
            "rare",
            f"{part.process} spent {{seconds}} in {inside(part)}{having.phrase()}{rest_of(ledger, part)}",
            why="; ".join(filter(None, [having.evidence(), doing(ledger.facts, part)]))
            or "the regions of these steps show it",
            advice="record a step without it to see a usual step; do it less often, or concurrently with the steps",
            assumption="the step does not have it either",
            without=lambda each: each.when,
        )


def rarity(facts: Facts, part: Part) -> str:
    """Return the end of a sentence about work in a region that is rare, or that is in one; else an empty string."""
    place = rare_place(facts, part)
    having = having_of(facts, part, place[1][-1]) if place else None
    return having.phrase() if having else ""


def rare_place(facts: Facts, part: Part) -> tuple[str, tuple[str, ...]] | None:
    """Return the process and the outermost region of a part that is rare."""
    for depth, name in enumerate(part.region, 1):
        having = having_of(facts, part, name)
        if having is None:
            continue
        have, of = len(having.have), len(having.have) + len(having.lack)
        if of >= FEWEST_STEPS and have <= MOST * of:
            return part.process, part.region[:depth]
    return None
