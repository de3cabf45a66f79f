"""Find overhead: the recording and what it did not see, Python's garbage collector, the allocator of a device, and sequences that an engine computed again."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.timelines import DRIVER
from stepprof.analysis.report.wording import seconds_text


def garbage(ledger: Ledger) -> None:
    """Claim the collections of processes while these are on the path."""

    def collecting(part: Part) -> Intervals:
        return part.when & ledger.facts.signs[part.process].collecting

    for part in ledger.parts("work", "communication"):
        ledger.claim(
            part,
            collecting(part),
            "gc",
            f"Python's garbage collector stopped {part.process} for {{seconds}} in {inside(part)}",
            why="the begin and end of collections were recorded",
            advice="call gc.freeze() after start-up, raise gc.set_threshold, or collect between steps",
            assumption="the step has no collection",
            without=collecting,
            of_host=True,
        )


TOO_MUCH = 0.5
"""If recording has at least this share of a step and its recording, nothing else can be judged."""
SHORT = 0.1
"""A step of more seconds is judged even if its recording took longer than the step."""


def recording(ledger: Ledger) -> None:
    """Book the time in which the profiler held the path up; say if the step is short next to it."""
    facts = ledger.facts
    recorded = Intervals.of((each.start, each.end) for each in facts.path if each.kind == "recording")
    own = facts.seconds - recorded.total / 1e9
    held = {label: each.held.total / 1e9 for label, each in facts.timelines.items()}
    longest = max(held, key=lambda label: held[label], default="")
    if longest and own < SHORT and own < TOO_MUCH * (own + held[longest]):
        ledger.short(
            longest,
            f"the step is too short to be judged: recording it held {longest} up for {seconds_text(held[longest])}, the step itself took {seconds_text(own)}",
            advice="record several steps as one capture (`join_steps = true`), or a longer step",
        )
    ledger.book(recorded)


def unfinished_engines(ledger: Ledger) -> None:
    """Book the time in which a process may have waited for an engine whose capture does not show when it finished."""
    facts = ledger.facts
    unrecorded = {role for role, generated in facts.unfinished if role is not None and not len(generated)}
    by_role: dict[str | None, Intervals] = {}
    for role, generated in facts.unfinished:
        by_role[role] = by_role.get(role, EMPTY) | generated
    everything = Intervals.all_of(by_role.values())
    for label, timeline in facts.timelines.items() if by_role else ():
        leads = timeline.process.origin.rank == DRIVER
        may = []
        for start, end, role, _ in timeline.stretches:
            generated = everything if leads else by_role.get(role, EMPTY)
            if role in unrecorded:
                may.append((start, end))
            elif len(generated.clip(start, end)):
                may.append((max(start, int(generated.start[0])), end))
        here = Intervals.of((each.start, each.end) for each in facts.path if each.process == label)
        ledger.book((Intervals.of(may) & here) - timeline.computing)


def memory_pressure(ledger: Ledger) -> None:
    """Claim the driver's calls for memory while these are on the path."""
    found = {label: each.process.allocating() for label, each in ledger.facts.timelines.items()}

    def allocating(part: Part) -> Intervals:
        return part.when & found[part.process]

    for part in ledger.parts("work"):
        ledger.claim(
            part,
            allocating(part),
            "memory",
            f"{part.process} took memory from its device's driver, or gave it back, for {{seconds}} in {inside(part)}",
            why="the trace has the driver's calls: the cache of the allocator had no block that fits",
            advice="leave more memory free (smaller micro-batches, a smaller KV cache), avoid sizes that vary (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), and do not empty the cache in the step",
            assumption="the cache has all blocks",
            without=allocating,
            of_host=True,
        )


def preemption(ledger: Ledger) -> None:
    """Claim the time in which engines computed preempted sequences again (vLLM: beyond the median decode step)."""
    recomputing = ledger.facts.recomputing
    for part in ledger.parts("engine"):
        found = recomputing.get(part.process)
        if found is None:
            continue
        counted = f"it counted {found.preemptions:,} {'retraction' if found.retracts else 'preemption'}{'s' if found.preemptions > 1 else ''}, and "
        why, advice, assumption = _RETRACTS if found.retracts else _PREEMPTS
        ledger.claim(
            part,
            part.when & found.when,
            "preemption",
            f"{part.process} computed preempted sequences again for {{seconds}}",
            why=counted + why,
            advice=advice,
            assumption=assumption,
            without={label: each.when for label, each in recomputing.items()},
        )


_PREEMPTS = (
    "the forward steps that worked on more than one token of a continued sequence took longer than the median decode step",
    "give its cache more memory (gpu_memory_utilization, kv_cache_memory_bytes), or let it work on fewer sequences at a time (max_num_seqs)",
    "these forward steps take as long as the median decode step",
)
_RETRACTS = (
    "all new prompts were computed before its first decode step: the later forward steps of prompts computed retracted sequences again",
    "give its cache more memory (mem_fraction_static), let it work on fewer sequences at a time (max_running_requests), or start them more carefully (schedule_conservativeness)",
    "no sequence is retracted",
)
