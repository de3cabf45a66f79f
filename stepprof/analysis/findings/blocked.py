"""Find what blocked a thread or kept it busy, by its stacks: data loaders, copies, locks,
serialisation, files, sleeps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from stepprof.analysis.findings.facts import SHORTEST_NS, Facts, Ledger, Part, Stack
from stepprof.analysis.findings.wording import inside
from stepprof.analysis.report.intervals import Intervals

__all__ = ["blocked"]


@dataclass(frozen=True, slots=True)
class _Kind:
    topic: str
    label: re.Pattern[str]
    files: frozenset[str]
    text: str
    advice: str
    around: frozenset[str] = frozenset()
    """Modules that may be anywhere in the stack."""

    def fits(self, stack: Stack) -> bool:
        if COLLECTIVES in stack.modules:
            return False
        if self.around.intersection(stack.modules):
            return True
        if stack.waits:
            return self.topic == "sleep"
        return bool(self.label.search(stack.label)) or bool(stack.modules and stack.modules[0] in self.files)


COLLECTIVES = "distributed_c10d.py"
"""The module of torch.distributed's calls: a wait in them is a wait for other ranks."""
KINDS = (
    _Kind(
        "data",
        re.compile(r"(?!)"),
        frozenset(),
        "{process} spent {seconds} in the data loader in {place}",
        "load ahead in worker processes (num_workers, prefetch_factor), or prepare the data before the job",
        around=frozenset({"dataloader.py"}),
    ),
    _Kind(
        "copy",
        re.compile(r"\bdeepcopy\b"),
        frozenset(),
        "{process} copied objects for {seconds} in {place}",
        "copy into memory that exists already (Tensor.copy_), or keep one copy and pass it by reference",
        around=frozenset({"copy.py"}),
    ),
    _Kind(
        "pickle",
        re.compile(r"(?i)pickle|\b(dumps|loads)\b|\bserialize"),
        frozenset({"pickle.py", "cloudpickle.py", "serialization.py", "reduction.py"}),
        "{process} serialised objects for {seconds} in {place}",
        "pass tensors by shared memory or by reference (ray.put once, torch.multiprocessing), and send less",
    ),
    _Kind(
        "lock",
        re.compile(r"(?i)acquire|lock\b|semaphore|condition|barrier\.wait"),
        frozenset({"threading.py", "synchronize.py"}),
        "{process} waited {seconds} for a lock in {place}",
        "hold the lock for less time, or give each thread its own data",
    ),
    _Kind(
        "io",
        re.compile(r"(?i)\b(read|readline|readlines|write|flush|fsync|recv|recv_into|send|sendall|urlopen|request|connect|open)\b"),
        frozenset({"socket.py", "ssl.py", "client.py", "connectionpool.py", "connection.py"}),
        "{process} waited {seconds} for a file or the network in {place}",
        "do it in another thread, or concurrently with the next phase",
    ),
    _Kind(
        "sleep",
        re.compile(r"(?i)\bsleep\b|\bpoll\b|\bselect\b|\bwait\b|\bjoin\b|\.get\b|\bresult\b"),
        frozenset({"queue.py", "selectors.py"}),
        "{process} did nothing for {seconds} in {place}",
        "wait for an event instead of a time",
    ),
)  # fmt: skip


def blocked(ledger: Ledger) -> None:
    """Claim, part by part, the time of stacks of one kind."""
    for kind in KINDS:
        for part in ledger.parts("work", "outside", "handover"):
            signs = ledger.facts.signs.get(part.process)
            stacks = [] if signs is None else [stack for stack in signs.stacks if kind.fits(stack)]
            if not stacks:
                continue
            when = _when(ledger.facts, kind, part)
            if when.total < SHORTEST_NS:
                continue
            longest = max(stacks, key=partial(_overlap, when))
            ledger.claim(
                part,
                when,
                kind.topic,
                kind.text.replace("{process}", part.process).replace("{place}", inside(part)),
                why=f"its stacks show {longest.label} in {longest.place}",
                advice=kind.advice,
                assumption="the thread does not wait there",
                without={each.process: _when(ledger.facts, kind, each) for each in ledger.facts.alike(part)}
                if part.region
                else None,
            )


def _when(facts: Facts, kind: _Kind, part: Part) -> Intervals:
    """Return the time of a part in which the stacks of its process are of one kind."""
    signs = facts.signs.get(part.process)
    stacks = [] if signs is None else [stack for stack in signs.stacks if kind.fits(stack)]
    when = part.when & Intervals.union([stack.start for stack in stacks], [stack.end for stack in stacks])
    if kind.topic == "sleep":  # it waits for the work of other threads and coroutines
        for nest in facts.timelines[part.process].nests:
            when -= Intervals.unpack(nest.beside)
            when -= Intervals.all_of(Intervals.unpack(each.total) for each in nest.places if each.overlap)
    return when


def _overlap(when: Intervals, stack: Stack) -> int:
    return when.clip(stack.start, stack.end).total
