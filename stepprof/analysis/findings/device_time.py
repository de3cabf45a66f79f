"""Find the time in which devices compute nothing: communication that no computation hides, and waits for the host."""

from __future__ import annotations

from stepprof.analysis.findings.facts import Part
from stepprof.analysis.findings.host_waits import longest_call
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process


def host_bound(ledger: Ledger) -> None:
    """Claim the parts of the path in which a process has a device and its captures show no kernel on it."""

    def without_kernels(part: Part) -> Intervals:
        process = ledger.facts.timelines[part.process].process
        return (part.when & _idle(process)) - _pending(process)

    for part in ledger.parts("work"):
        process = ledger.facts.timelines[part.process].process
        text = f"the device of {part.process} had no work for {{seconds}} in {inside(part)}"
        ledger.claim(
            part,
            part.when & _idle(process) & _pending(process),
            "pending",
            f"{text}, although kernels were launched",
            why="they began that much later; the trace does not show what they waited for",
            advice="look at what their streams waited for: an event of another stream, a copy, another process on the device",
            assumption=None,
        )
        idle = without_kernels(part)
        call = longest_call(process.host_calls(), idle)
        shown = doing(ledger.facts, Part(part.process, part.role, part.region, idle))
        ledger.claim(
            part,
            idle,
            "host",
            text,
            why="; ".join(filter(None, (call.sentence() if call else None, shown))) or _unlaunched(process),
            advice=call.advice() if call else _less_work(process),
            without=without_kernels,
            assumption="kernels follow each other without gaps",
        )


def _pending(process: Process) -> Intervals:
    return Intervals.all_of(Intervals.unpack(each.pending) for each in process.host_calls())


def _unlaunched(process: Process) -> str:
    """Return what the absence of kernels shows."""
    if any(each.connected for each in process.host_calls()):
        return "its host had launched nothing that could run"
    return "no kernel ran; the trace does not connect kernels with their launches"


def _less_work(process: Process) -> str:
    graphs = "" if any(each.graphs for each in process.host_calls()) else "CUDA graphs, "
    return f"launch less and larger work: {graphs}torch.compile, fewer synchronisations (.item(), .cpu())"


def _idle(process: Process) -> Intervals:
    """Return when its captures show that its device had nothing to do; empty: it has none."""
    if not process.has_device:
        return EMPTY
    computing, communicating, _ = process.working()
    return process.covered() - (computing | communicating) - process.unseen()


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
            without=lambda each: each.when & ledger.facts.timelines[each.process].communicating,
            shared=True,
        )
