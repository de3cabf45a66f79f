"""Find communication that no computation hides."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger, Part
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import EMPTY, Intervals

__all__ = ["exposed_communication"]


def exposed_communication(ledger: Ledger) -> None:
    """Claim the collectives on the path: from the entry of the last rank to their end, without computation."""
    computing: dict[str, Intervals] = {}

    def region_of(part: Part) -> tuple[str, tuple[str, ...]]:
        """Return one place for all ranks: the path goes back and forth between them."""
        work = ledger.facts.timelines[part.process].process.working()[0]
        computing[""] = computing.get("", EMPTY) | (part.when & work)
        return "", part.region

    for part in ledger.merged(region_of, "communication"):
        ledger.claim(
            part,
            part.when - computing[""],
            "overlap",
            f"collectives took {{seconds}} in {inside(part)} while nothing was computed",
            why="all ranks had entered: this is transfer, not waiting",
            advice="overlap it with the backward pass (buckets, prefetch), send less (gradient accumulation, lower precision), or use a faster link",
            assumption="computation hides all of it",
            without={
                each.process: each.when & ledger.facts.timelines[each.process].communicating
                for each in ledger.facts.alike(part)
            },
            shared=True,
        )
