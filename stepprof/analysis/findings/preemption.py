"""Find tokens that an engine computed again because it had preempted their sequences."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Ledger

__all__ = ["preemption"]


def preemption(ledger: Ledger) -> None:
    """Claim by how much the forward steps that computed again took longer than the median decode step."""
    recomputing = ledger.facts.recomputing
    for part in ledger.parts("engine"):
        found = recomputing.get(part.process)
        if found is not None:
            ledger.claim(
                part,
                part.when & found.when,
                "preemption",
                f"{part.process} computed preempted sequences again for {{seconds}}",
                why=f"it counted {found.preemptions:,} preemption{'s' if found.preemptions > 1 else ''}, and the forward steps that worked on "
                "more than one token of a continued sequence took longer than the median decode step",
                advice="give its cache more memory (gpu_memory_utilization, kv_cache_memory_bytes), or let it work on fewer sequences at a time (max_num_seqs)",
                assumption="these forward steps take as long as the median decode step",
                without={label: each.when for label, each in recomputing.items()},
            )
