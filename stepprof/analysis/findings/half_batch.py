"""Find batches that have fewer samples than room for them."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Facts, Part, place_of
from stepprof.analysis.findings.ledger import Ledger, last_part, share_of
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.nesting import Place

EMPTY_SHARE = 0.25
"""A region is named if it spends at least this share of its time on empty places."""


def half_batch(ledger: Ledger) -> None:
    """Claim the share of a region's time that its empty places have, by its attributes ``samples`` and ``batch_size``."""
    for part in ledger.merged(lambda part: _with_amounts(ledger.facts, part), "work"):
        place = _filled(ledger.facts, part.process, part.role, part.region)
        empty = _empty(ledger.facts, part)
        if place is None or empty < EMPTY_SHARE:
            continue
        worked = _worked(ledger.facts, part)
        ledger.claim(
            part,
            last_part(worked, int(empty * worked.total)),
            "half_batch",
            f"{part.process} spent {{seconds}} on empty places of its batches in {inside(part)}",
            why=f"its batches have room for {place.amounts['batch_size']:,.0f} samples and had {place.amounts['samples']:,.0f} (attributes batch_size and samples)",
            advice="fill them: fewer and fuller batches, or sequence packing",
            without=lambda each: share_of(_worked(ledger.facts, each), _empty(ledger.facts, each)),
            assumption="a batch takes as long with empty places as without, and full batches replace them",
        )


def _worked(facts: Facts, part: Part) -> Intervals:
    """Return the time of a part in which neither its trace nor its stacks show that it was in a collective."""
    timeline = facts.timelines[part.process]
    met = timeline.communicating | timeline.unmatched | timeline.waiting
    return part.when - met - facts.signs[part.process].in_collectives(part.when)


def _empty(facts: Facts, part: Part) -> float:
    """Return the share of its time that a part spends on empty places."""
    place = _filled(facts, part.process, part.role, part.region)
    return 0.0 if place is None or place.empty is None else place.empty


def _with_amounts(facts: Facts, part: Part) -> tuple[str, tuple[str, ...]] | None:
    """Return the innermost region around a part that states both amounts."""
    for depth in range(len(part.region), 0, -1):
        if _filled(facts, part.process, part.role, part.region[:depth]):
            return part.process, part.region[:depth]
    return None


def _filled(facts: Facts, process: str, role: str | None, region: tuple[str, ...]) -> Place | None:
    """Return a region of which each call states the samples in its batch, and the room that this has; None: one does not, or was not finished."""
    place = place_of(facts, process, role, region)
    if place is None or place.failed or place.empty is None or not place.amounts["batch_size"]:
        return None
    return place
