"""Find pauses of Python's garbage collector."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger
from stepprof.analysis.findings.wording import inside

__all__ = ["garbage"]


def garbage(ledger: Ledger) -> None:
    """Claim the collections of processes while these are on the path."""
    for part in ledger.parts("work", "communication"):
        signs = ledger.facts.signs.get(part.process)
        if signs is not None:
            ledger.claim(
                part,
                part.when & signs.collecting,
                "gc",
                f"Python's garbage collector stopped {part.process} for {{seconds}} in {inside(part)}",
                why="the begin and end of collections were recorded",
                advice="call gc.freeze() after start-up, raise gc.set_threshold, or collect between steps",
                assumption="the step has no collection",
                without={
                    each.process: each.when & ledger.facts.signs[each.process].collecting
                    for each in ledger.facts.alike(part)
                    if each.process in ledger.facts.signs
                },
            )
