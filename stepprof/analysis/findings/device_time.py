"""Find the time in which devices compute nothing: communication that no computation hides, and waits for the host."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process

__all__ = ["exposed_communication", "host_bound"]


def host_bound(ledger: Ledger) -> None:
    """Claim the parts of the path in which a process has a device and its captures show no kernel on it."""
    for part in ledger.parts("work"):
        process = ledger.facts.timelines[part.process].process
        if not process.has_device:
            continue
        idle = part.when & _idle(process)
        ledger.claim(
            part,
            idle,
            "host",
            f"the device of {part.process} had no work for {{seconds}} in {inside(part)}",
            why=doing(ledger.facts, Part(part.process, part.role, part.region, idle))
            or "its host launched no kernel",
            advice="launch less and larger work: CUDA graphs, torch.compile, fewer synchronisations (.item(), .cpu())",
            without={
                each.process: each.when & _idle(ledger.facts.timelines[each.process].process)
                for each in ledger.facts.alike(part)
                if ledger.facts.timelines[each.process].process.has_device
            },
            assumption="kernels follow each other without gaps",
        )


def _idle(process: Process) -> Intervals:
    """Return when its captures show that its device had nothing to do."""
    computing, communicating, _ = process.working()
    return process.covered() - computing - communicating


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
