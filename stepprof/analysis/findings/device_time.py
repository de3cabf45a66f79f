"""Find the time in which devices compute nothing: communication that no computation hides, and waits for the host."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from stepprof.analysis.findings.facts import Part
from stepprof.analysis.findings.host_waits import RuntimeCall, longest_call
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.together import (
    Cause,
    When,
    claim_together,
    forward_steps_of_others,
    parts_of_others,
)
from stepprof.analysis.findings.wording import doing, inside
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.processes import Process
from stepprof.analysis.report.wording import quoted, seconds_text

_DEVICES = "the device of {processes} had no work for {seconds} in {places}"
_LATER = "they began that much later; the trace does not show what they waited for"
_LOOK = (
    "look at what their streams waited for: an event of another stream, a copy, another process on the device"
)
_FILL = re.compile(r"(?i)memset")
_OF_HOST = re.compile(r"(?i)htod|dtoh|host")
_PINNED = "copy from pinned memory with non_blocking=True on a stream of its own, so that kernels run meanwhile; or copy less"
_TRANSFER = "collectives took {seconds} in {places} while nothing was computed"
_ENTERED = "all ranks had entered: this is transfer, not waiting"
_OVERLAP = "overlap it with the backward pass (buckets, prefetch), send less (gradient accumulation, lower precision), or use a faster link"
_HIDDEN = "computation hides all of it"
_NO_GAPS = "kernels follow each other without gaps"


def host_bound(ledger: Ledger) -> None:
    """Claim the parts of the path in which a process has a device and its captures show no kernel on it."""

    def without_kernels(part: Part) -> Intervals:
        process = ledger.facts.timelines[part.process].process
        return (part.when & _idle(process)) - _pending(process)

    _of_others(ledger, without_kernels)
    for part in ledger.parts("work"):
        process = ledger.facts.timelines[part.process].process
        text = f"the device of {part.process} had no work for {{seconds}} in {inside(part)}"
        ledger.claim(
            part,
            part.when & _idle(process) & _pending(process),
            "pending",
            f"{text}, although kernels were launched",
            why=_LATER,
            advice=_LOOK,
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
            why="; ".join(filter(None, (call.sentence() if call else None, shown))) or _unlaunched([process]),
            advice=call.advice() if call else _less_work([process]),
            without=without_kernels,
            assumption=None if call and call.is_of_profiler else _NO_GAPS,
        )


def _of_others(ledger: Ledger, idle: When) -> None:
    """Claim such time of traces of others: one finding for each call of a host, one for all other idle time."""
    facts = ledger.facts
    parts = [*parts_of_others(ledger, "work", "outside"), *forward_steps_of_others(ledger)]

    def pending(part: Part) -> Intervals:
        process = facts.timelines[part.process].process
        return part.when & _idle(process) & _pending(process)

    claim_together(
        ledger,
        parts,
        pending,
        Cause("pending", f"{_DEVICES}, although kernels were launched", _LATER, _LOOK, None),
    )
    by_call: dict[RuntimeCall | None, list[Part]] = defaultdict(list)
    times: Counter[RuntimeCall | None] = Counter()
    for part in parts:
        call = longest_call(facts.timelines[part.process].process.host_calls(), idle(part))
        kind = None if call is None else dataclasses.replace(call, nanoseconds=0)
        by_call[kind].append(part)
        times[kind] += 0 if call is None else call.nanoseconds
    for kind, those in by_call.items():
        idling = {part.process for part in those if len(idle(part) & ledger.free)}
        hosts = [facts.timelines[label].process for label in sorted(idling)]
        call = None if kind is None else dataclasses.replace(kind, nanoseconds=times[kind])
        why = call.sentence(len(hosts)) if call else _unlaunched(hosts)
        advice = call.advice() if call else _less_work(hosts)
        assumption = None if call and call.is_of_profiler else _NO_GAPS
        claim_together(ledger, those, idle, Cause("host", _DEVICES, why, advice, assumption), without=idle)


def copies(ledger: Ledger) -> None:
    """Claim the time in which the device of a trace of others did nothing but copy data."""
    facts = ledger.facts
    parts = [*parts_of_others(ledger, "work", "outside"), *forward_steps_of_others(ledger)]
    copying = {
        part.process: Intervals.all_of(
            Intervals.unpack(each.copying) for each in facts.timelines[part.process].process.host_calls()
        )
        for part in parts
    }
    kinds: Counter[str] = Counter()
    for label in copying:
        for host in facts.timelines[label].process.host_calls():
            for copy in host.copies:
                kinds[copy.name] += Intervals.unpack(copy.when).total
    if not kinds:
        return
    name, longest = kinds.most_common(1)[0]
    fills = all(_FILL.match(each) for each in kinds)
    why = f"{quoted(name)} took longest of its {'fills' if fills else 'copies'}: {seconds_text(longest / 1e9)} in all"
    advice = _PINNED if _OF_HOST.search(name) else "copy and fill less, or on a stream of its own"
    claim_together(
        ledger,
        parts,
        lambda part: part.when & copying[part.process],
        Cause(
            "memcpy",
            f"the device of {{processes}} only {'filled memory' if fills else 'copied data'} for {{seconds}} in {{places}}",
            why,
            advice,
            "kernels run meanwhile",
        ),
    )


def _pending(process: Process) -> Intervals:
    return Intervals.all_of(Intervals.unpack(each.pending) for each in process.host_calls())


def _unlaunched(processes: Sequence[Process]) -> str:
    """Return what the absence of kernels shows."""
    if all(any(each.connected for each in process.host_calls()) for process in processes):
        return f"{'its host' if len(processes) == 1 else 'their hosts'} had launched nothing that could run"
    return "no kernel ran; the trace does not connect kernels with their launches"


def _less_work(processes: Sequence[Process]) -> str:
    uses = any(each.graphs for process in processes for each in process.host_calls())
    ascend = any(
        work.device == "npu" for process in processes for each in process.digests for work in each.works
    )
    graphs = "" if uses else "NPU graphs, " if ascend else "CUDA graphs, "
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

    def transfers(part: Part) -> Intervals:
        return part.when & ledger.facts.timelines[part.process].communicating

    parts = ledger.merged(region_of, "communication")
    if all(each.process.kind == "trace" for each in ledger.facts.timelines.values()):
        parts = [dataclasses.replace(part, of_others=True) for part in parts]
        claim_together(
            ledger,
            parts,
            lambda part: part.when - computing[""],
            Cause("overlap", _TRANSFER, _ENTERED, _OVERLAP, _HIDDEN),
            without=transfers,
            shared=True,
        )
    for part in parts:
        ledger.claim(
            part,
            part.when - computing[""],
            "overlap",
            _TRANSFER.replace("{places}", inside(part)),
            why=_ENTERED,
            advice=_OVERLAP,
            assumption=_HIDDEN,
            without=transfers,
            shared=True,
        )
