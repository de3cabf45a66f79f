"""Find the time in which the allocator has no free block and asks the driver of the device for memory."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger
from stepprof.analysis.findings.wording import inside

__all__ = ["memory_pressure"]


def memory_pressure(ledger: Ledger) -> None:
    """Claim the driver's calls for memory while these are on the path."""
    facts = ledger.facts
    allocating = {label: each.process.allocating() for label, each in facts.timelines.items()}
    for part in ledger.parts("work"):
        if not len(allocating[part.process]):
            continue
        ledger.claim(
            part,
            part.when & allocating[part.process],
            "memory",
            f"{part.process} took memory from its device's driver, or gave it back, for {{seconds}} in {inside(part)}",
            why="the trace has the driver's calls: the cache of the allocator had no block that fits",
            advice="leave more memory free (smaller micro-batches, a smaller KV cache), avoid sizes that vary (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), and do not empty the cache in the step",
            assumption="the cache has all blocks",
            without={each.process: each.when & allocating[each.process] for each in facts.alike(part)},
        )
