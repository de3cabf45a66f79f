"""Find a device that waits for its host."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger, Part
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.processes import Process

__all__ = ["host_bound"]


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
