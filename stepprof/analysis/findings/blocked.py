"""Find what blocked a thread or kept it busy, by its stacks: data loaders, copies, locks,
serialisation, files, sleeps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.rare import rarity
from stepprof.analysis.findings.signs import COLLECTIVES, COMPILE, LOADER, SHORTEST_NS, WORKER, Stack, Task
from stepprof.analysis.findings.together import (
    Cause,
    claim_together,
    forward_steps_of_others,
    parts_of_others,
)
from stepprof.analysis.findings.wording import DATA_IS_THERE, inside, load_advice
from stepprof.analysis.report.intervals import Intervals
from stepprof.analysis.report.wording import quoted

NOTHING = re.compile(r"(?!)")
SERIALISES = re.compile(
    r"(?i)(^|[._])(dumps|loads)$|\b\w*(pickle|pickler|yaml|json|marshal|msgpack|joblib|dill)(\(\))?\.\w*(dump|load|pack)\w*$"
    r"|\b(json|msgpack|yaml|toml)[._](\w+(\(\))?\.)?(en|de)code\w*$|\bmodel_(dump|validate)_json$"
    r"|\b(torch|np|numpy)\.(save\w*|load)$|\b(un)?packb$|\b(save|load)_file$|\bserialize\w*$"
)
"""Calls that make bytes of objects, or objects of bytes."""
ONE = 1.5
"""Fewer threads at a time, on average, count as one."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What other threads than that of the windows did in some time."""

    average: float
    """How many threads were busy on average."""
    pool: bool
    name: str
    """The task that took the most time."""
    label: str
    """What this task mostly did."""
    share: float
    """Share of the label in the time of all tasks."""

    @classmethod
    def of(cls, tasks: Sequence[Task], when: Intervals) -> Busy:
        """Return the summary of some tasks in some time."""
        times = Counter[tuple[str, str]]()
        for each in tasks:
            times[each.name, each.stack.call] += when.clip(each.stack.start, each.stack.end).total
        if not times.total():
            return cls(0.0, False, "", "", 0.0)
        ((name, label), longest), *_ = times.most_common(1)
        pool = all(each.pool for each in tasks)
        return cls(times.total() / when.total, pool, name, label, longest / times.total())

    @property
    def threads(self) -> str:
        """Their number, in words."""
        kind = "pool thread" if self.pool else "other thread"
        return f"one {kind}" if self.average < ONE else f"{self.average:.0f} {kind}s"


@dataclass(frozen=True, slots=True)
class _Kind:
    topic: str
    label: re.Pattern[str]
    files: frozenset[str]
    text: str
    advice: str
    around: frozenset[str] = frozenset()
    """Modules that may be anywhere in the stack."""
    calls: re.Pattern[str] = NOTHING
    """Matches a call of a library by the job's own code, whatever is innermost."""
    protocol: bool = False
    """Whether a function of pickle's protocol that the job's call has called shows it."""
    waits: bool = False
    """Whether the thread waits for others: see `Stack.waits`."""
    assumption: str = "the thread does not wait there"
    wants_cpu: tuple[bool | None, ...] = (True, False, None)
    """What `Stack.wants_cpu` may be. A thread that waits uses no CPU, whatever the name of its call."""

    def fits(self, stack: Stack) -> bool:
        if COLLECTIVES in stack.modules:
            return False
        if self.around.intersection((*stack.modules, *(call.file for call in stack.calls))):
            return True
        if stack.waits or self.waits:
            return stack.waits and self.waits
        if stack.wants_cpu not in self.wants_cpu:
            return False
        if any(self.calls.search(call.name or "") for call in stack.calls):
            return True
        if self.protocol and stack.protocol:
            return True
        return stack.shows(self.label) or bool(stack.modules and stack.modules[0] in self.files)

    def shown(self, stack: Stack) -> str:
        """Return what a stack of this kind shows: the library's call, also if that has called the job's own code."""
        names = [call.name for call in stack.calls if call.name and self.calls.search(call.name)]
        if names and stack.call != names[0] and not self.calls.search(stack.call):
            return f"{names[0]}, which called {stack.line}"
        return stack.activity


WAITS = (False, None)
SURELY_WAITS = (False,)
"""For names that calls have too that do not wait: `dict.get`, `str.join`."""
_IO = (
    "{process} waited {seconds} for a file, the network or another process in {place}",
    "do it in another thread, or concurrently with the next phase",
)
_WAITED = "{process} waited {seconds} in {place}"
AWAITED = "see what it waits for: if that is another process, record this too; a region in it shows its time"
MEANWHILE = {"lock", "sleep"}
"""Their reasons name what other threads did meanwhile. Where the stack shows a wait for threads, `other_threads` does that."""
COMPILING = _Kind(
    "compile",
    re.compile(f"^{re.escape(COMPILE)}$"),
    frozenset(),
    "{process} ran torch's compiler for {seconds} in {place}",
    "TORCH_LOGS=recompiles names the guard that failed; pad batches to a few lengths, or mark the size that changes as dynamic (torch._dynamo.mark_dynamic), and warm up before the first step",
    assumption="it is compiled before the step",
)
KINDS = (
    _Kind(
        "data",
        re.compile(WORKER),
        frozenset(),
        "{process} waited {seconds} for a worker process of its data loader in {place}",
        "",  # `load_advice`
        assumption=DATA_IS_THERE,
    ),
    _Kind(
        "data",
        NOTHING,
        frozenset(),
        "{process} spent {seconds} in the data loader in {place}",
        "",  # `load_advice`
        around=frozenset({LOADER}),
        assumption=DATA_IS_THERE,
    ),
    _Kind(
        "copy",
        re.compile(r"\bdeepcopy\b"),
        frozenset(),
        "{process} copied objects for {seconds} in {place}",
        "copy into memory that exists already (Tensor.copy_), or keep one copy and pass it by reference",
        around=frozenset({"copy.py"}),
        calls=re.compile(r"\bdeepcopy$"),
        assumption="nothing is copied",
    ),
    _Kind(
        "pickle",
        SERIALISES,
        frozenset({"pickle.py", "cloudpickle.py", "serialization.py", "reduction.py"}),
        "{process} serialised objects, or read serialised ones, for {seconds} in {place}",
        "to another process: pass tensors by shared memory or by reference (ray.put once, torch.multiprocessing), and send less; to a file: write it concurrently with the next phase",
        calls=SERIALISES,
        protocol=True,
        assumption="nothing is serialised",
    ),
    _Kind(
        "lock",
        re.compile(r"(?i)acquire|(^|[._]|\br)lock\b|(?-i:Lock\b)|semaphore|barrier\.wait"),
        frozenset({"threading.py", "synchronize.py"}),
        "{process} waited {seconds} for a lock in {place}",
        "hold the lock for less time, or give each thread its own data",
        wants_cpu=WAITS,
    ),
    _Kind(
        "lock",
        re.compile(r"\.__enter__$"),
        frozenset(),
        "{process} waited {seconds} to enter a `with` block in {place}",
        "if it is a lock, hold it for less time, or give each thread its own data",
        wants_cpu=SURELY_WAITS,
    ),
    _Kind(
        "io",
        NOTHING,
        frozenset(),
        "{process} waited {seconds} for another program in {place}",
        "run the program concurrently with the next phase, or call a library in its place",
        wants_cpu=WAITS,
        around=frozenset({"subprocess.py"}),
    ),
    _Kind(
        "io",
        re.compile(r"(?i)(\b|_)(file|f|fh|fp|os|io)\.(open|read|readinto|readline|readlines|write|writelines|flush|fsync|sendfile)\b"),
        frozenset(),
        "{process} read or wrote files for {seconds} in {place}",
        _IO[1],
        assumption="this runs concurrently with the step",
    ),
    _Kind(
        "io",
        NOTHING,
        frozenset({"socket.py", "ssl.py", "client.py", "connectionpool.py", "connection.py"}),
        *_IO,
        wants_cpu=WAITS,
    ),
    _Kind(
        "io",
        re.compile(r"(?i)\b(read|readline|readlines|write|flush|fsync|recv|recv_into|send|sendall|urlopen|request|connect|open)\b"),
        frozenset(),
        *_IO,
        wants_cpu=SURELY_WAITS,
    ),
    _Kind(
        "sleep",
        re.compile(r"(?i)\bsleep\b"),
        frozenset(),
        _WAITED,
        "wait for an event instead of a time",
        wants_cpu=WAITS,
    ),
    _Kind(
        "sleep",
        re.compile(r"(?i)\bwait\b"),
        frozenset({"queue.py", "selectors.py"}),
        _WAITED,
        AWAITED,
        wants_cpu=WAITS,
    ),
    _Kind(
        "sleep",
        re.compile(r"(?i)\bpoll\b|\bselect\b|\bjoin\b|\.get\b|\bresult\b"),
        frozenset(),
        _WAITED,
        AWAITED,
        wants_cpu=SURELY_WAITS,
    ),
    _Kind(
        "sleep",
        NOTHING,
        frozenset(),
        "{process} waited {seconds} for another thread or process, a coroutine or a timeout, in {place}",
        "add a region to what it waits for, if that is in this process: then its time and its stacks are recorded; one around each awaited call shows whether calls run one after the other",
        waits=True,
    ),
)  # fmt: skip


def is_lock(stack: Stack) -> bool:
    """Return whether a thread waits for a lock or a semaphore, or to enter a `with` block."""
    return any(kind.fits(stack) for kind in KINDS if kind.topic == "lock")


def compiling(ledger: Ledger) -> None:
    """Claim the time in torch's compiler. Its garbage collections and its waits are part of it."""
    _claim(ledger, COMPILING)
    compiled: dict[str, Intervals] = {
        label: Intervals.all_of(Intervals.unpack(each.compiling) for each in timeline.process.host_calls())
        for label, timeline in ledger.facts.timelines.items()
    }
    claim_together(
        ledger,
        [*parts_of_others(ledger, "work", "outside"), *forward_steps_of_others(ledger)],
        lambda part: (part.when & compiled[part.process]) - ledger.facts.device_works(part.process),
        Cause(
            COMPILING.topic,
            "{processes} ran torch's compiler for {seconds} in {places}",
            "its phases are in the trace (dynamo_timed)",
            COMPILING.advice,
            COMPILING.assumption,
        ),
    )


def blocked(ledger: Ledger) -> None:
    """Claim, part by part, the time of stacks of one kind."""
    for kind in KINDS:
        _claim(ledger, kind)


def _claim(ledger: Ledger, kind: _Kind) -> None:
    for part in ledger.parts("work", "outside", "handover"):
        when = _when(ledger.facts, kind, part)
        if when.total < SHORTEST_NS:
            continue
        shown = Counter[tuple[bool, str]]()
        for stack, start, end in _pieces(ledger.facts, kind, part):
            shown[bool(stack.line), kind.shown(stack)] += when.clip(start, end).total
        _, activity = max(shown, key=lambda each: (each[0], shown[each]))
        ledger.claim(
            part,
            when,
            kind.topic,
            kind.text.replace("{process}", part.process).replace("{place}", inside(part))
            + rarity(ledger.facts, part),
            why=f"its stacks show {activity}{_meanwhile(ledger.facts, part, when) if kind.topic in MEANWHILE and not kind.waits else ''}",
            advice=kind.advice or load_advice(ledger.facts, part),
            assumption=kind.assumption,
            without=partial(_when, ledger.facts, kind) if part.region else None,
            of_host=True,
        )


def _meanwhile(facts: Facts, part: Part, when: Intervals) -> str:
    """Return what other threads did meanwhile, if they did something for most of the time."""
    busy = Busy.of([each for each in facts.signs[part.process].tasks if not is_lock(each.stack)], when)
    return f"; meanwhile {busy.threads} ran {quoted(busy.name)} ({busy.label})" if busy.average >= 0.5 else ""


def _when(facts: Facts, kind: _Kind, part: Part) -> Intervals:
    """Return the time of a part in which the stacks of its process are of one kind."""
    when = part.when & Intervals.of((start, end) for _, start, end in _pieces(facts, kind, part))
    if kind.topic == "sleep":  # it waits for the work of other threads and coroutines
        for nest in facts.timelines[part.process].nests:
            when -= Intervals.unpack(nest.concurrent)
            when -= Intervals.all_of(Intervals.unpack(each.total) for each in nest.places if each.overlap)
    return when


def _pieces(facts: Facts, kind: _Kind, part: Part) -> list[tuple[Stack, int, int]]:
    """Return the stacks of one kind in a part, each with the start and the end of its part."""
    return [piece for piece in facts.signs[part.process].shown(part.whole) if kind.fits(piece[0])]
