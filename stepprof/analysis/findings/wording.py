"""Phrases that several findings share."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import median

from stepprof.analysis.findings.facts import Facts, Part
from stepprof.analysis.findings.ledger import Ledger
from stepprof.analysis.findings.neighbours import Having
from stepprof.analysis.findings.signs import LOADER, QUEUES, SHORTEST_NS
from stepprof.analysis.report.division import FORWARD_STEPS
from stepprof.analysis.report.wording import quoted, seconds_text

LEAST_QUEUED = 0.2
"""The time without a CPU is stated if it is at least this share."""
SHARE_CPUS = (
    "give it CPUs of its own: fewer processes or threads on the machine (OMP_NUM_THREADS, workers of data loaders), "
    "or pin the processes"
)

NO_ANNOTATION = "no annotation"
"""The place of time outside of the annotations of a trace that stepprof did not record."""
NEXT_BATCH = "enumerate(DataLoader)#"
"""How torch's profiler names the time in which a loop takes the next batch of a `DataLoader`."""
DATA_IS_THERE = "the data is there when it is needed"


def inside(part: Part) -> str:
    """Return the place of a part: its innermost region, and the regions around it.

    >>> from stepprof.analysis.report.intervals import EMPTY
    >>> inside(Part("actor rank 1", "actor", ("update", "load"), EMPTY))
    '`load` (in `update`, role actor)'
    """
    around = [*(quoted(name) for name in part.region[-2:-1])]
    around += [f"role {part.role}"] if part.role and part.role != part.name else []
    place = quoted(part.name) if part.name else NO_ANNOTATION if part.of_others else "the window"
    if part.of_engine:
        return FORWARD_STEPS
    if part.name is None and part.role:
        return f"the window of {part.role}"
    return f"{place} (in {', '.join(around)})" if around else place


def rest_of(ledger: Ledger, part: Part) -> str:
    """Return the end of a sentence about the time of a part: how much of it other findings have."""
    rest = part.claimed.total / 1e9
    return f", not counting {seconds_text(rest)} of other findings" if rest >= ledger.least else ""


def having_of(facts: Facts, part: Part, name: str) -> Having | None:
    """Return which of the steps around have work of a name in the process of a part; None: not known."""
    if facts.neighbours is None:
        return None
    return facts.neighbours.having(facts.timelines[part.process].process.origin, name)


def doing(facts: Facts, part: Part) -> str | None:
    """Return what the stacks of a part show, if they show most of it."""
    if part.when.total < SHORTEST_NS:
        return None
    signs = facts.signs[part.process]
    queued = signs.queued(part.when) / part.when.total
    times: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for stack, start, end in signs.shown(part.whole):
        ran = 1 - stack.queued if queued >= LEAST_QUEUED else 1.0  # one moment is in one of the two
        function = stack.line.partition(" (")[0]
        times[stack.call, function][stack.activity] += round(ran * part.when.clip(start, end).total)
    longest = sorted(times.values(), key=lambda each: -each.total())[:3]
    shown = [
        f"{each.total() / part.when.total:.0%} in {each.most_common(1)[0][0]}"
        for each in longest
        if each.total() >= 0.1 * part.when.total
    ]
    found = [f"its stacks: {', '.join(shown)}"] if shown else []
    if queued >= LEAST_QUEUED:
        found.append(f"{queued:.0%} of the time the thread was ready to run and had no CPU")
    return "; ".join(found) or None


def lacks_cpu(facts: Facts, part: Part, seconds: float) -> bool:
    """Return whether the thread was ready and had no CPU for longer than those of the other processes there: for half of some
    seconds of a part or more, and long enough for `doing` to state it.
    """
    queued = {each.process: facts.signs[each.process].queued(each.when) for each in facts.alike(part)}
    mine = queued.pop(part.process, 0.0)
    least = max(0.5e9 * seconds, LEAST_QUEUED * part.when.total)
    return mine - (median(queued.values()) if queued else 0.0) >= least


_LOAD_AHEAD = (
    "load ahead in worker processes (num_workers, prefetch_factor), or prepare the data before the job"
)
_WORKERS_LATE = "its worker processes are too slow: prepare less of the data in the job, or use more of them if the machine has processors left (num_workers)"


def load_advice(facts: Facts, part: Part) -> str:
    """Return what to try about a wait for data: a loader that waits for a queue has workers already."""
    stacks = [stack.modules for stack, _, _ in facts.signs[part.process].shown(part.when)]
    if any(name.startswith(f"{NEXT_BATCH}_MultiProcessing") for name in part.region):
        return _WORKERS_LATE
    called = [modules[modules.index(LOADER) - 1] for modules in stacks if LOADER in modules[1:]]
    return _WORKERS_LATE if QUEUES.intersection(called) else _LOAD_AHEAD
