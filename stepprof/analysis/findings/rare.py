"""Find work that most of the steps around do not have, such as a benchmark after every hundredth step."""

from __future__ import annotations

from functools import partial

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import doing, inside

FEWEST_STEPS = 3
MOST = 1 / 3
"""Work is rare if this share of the steps around has it, or less."""


def rare_work(ledger: Ledger) -> None:
    """Claim regions that few of the steps around have."""
    for part in ledger.merged(partial(_rare, ledger.facts), "work", "communication"):
        steps = _steps(ledger.facts, part.process, part.role, part.region[-1])
        have = sum(seconds > 0 for seconds in steps.values())
        ledger.claim(
            part,
            part.when,
            "rare",
            f"{part.process} spent {{seconds}} in {inside(part)}, which {len(steps) - have} of the {len(steps)} steps around it do not have",
            why=doing(ledger.facts, part) or "the regions of these steps show it",
            advice="record a step without it to see a usual step; do it less often, or concurrently with the steps",
            assumption="the step does not have it either",
            without=lambda each: each.when,
        )


def _rare(facts: Facts, part: Part) -> tuple[str, tuple[str, ...]] | None:
    """Return the process and the outermost region of a part that is rare."""
    for depth, name in enumerate(part.region, 1):
        steps = _steps(facts, part.process, part.role, name)
        if len(steps) >= FEWEST_STEPS and sum(map(bool, steps.values())) <= MOST * len(steps):
            return part.process, part.region[:depth]
    return None


def _steps(facts: Facts, process: str, role: str | None, name: str) -> dict[int, float]:
    """Return the seconds of a region in each of the steps around."""
    if facts.neighbours is None:
        return {}
    return facts.neighbours.seconds(facts.timelines[process].process.origin, role, name)
