"""The evidence of one process on the common clock: what its threads and coroutines did, by samples and counts."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

from stepprof.analysis.report.activities import Activity
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.run.evidence import (
    SAMPLE_NS,
    AwaitedCalls,
    Call,
    Collection,
    Evidence,
    Frame,
    HeldTasks,
    StackStretch,
)

COMPILE = "torch.compile"
"""The label of a thread in torch's compiler."""

LOADER = "dataloader.py"
"""The module of torch's data loader."""
QUEUES = frozenset({"queues.py", "queue.py"})
SEMAPHORE = "Semaphore.acquire"
WORKER = "the wait for a worker process of its data loader"
"""The label of a thread that takes a batch from the queue of its data loader's workers, and does not compute."""

COLLECTIVES = "distributed_c10d.py"
"""The module of torch.distributed's calls: a wait in them is a wait for other ranks."""

EVENT_LOOP = ("selectors.py", "base_events.py")
"""The innermost modules of a thread whose coroutines all wait."""


class Stack(NamedTuple):
    """What a thread was doing, on the common clock [ns]."""

    start: int
    end: int
    label: str
    """The innermost call, or the function: ``time.sleep``."""
    call: str
    """The call that the job's own code makes, whatever is innermost: ``json.loads``."""
    line: str
    """The innermost frame of the job's own code, or of all if it has none: ``function (file:line)``. Of `COMPILE` "" if it has none."""
    modules: tuple[str, ...]
    """The files of its frames, the innermost first; "" for the job's own code."""
    last: int
    """Its last sample."""
    wants_cpu: bool | None = None
    """Whether its thread had a CPU, or was ready for one, for half of the time or more; None: not known."""
    waits: bool = False
    """Whether it waits for another thread or for coroutines, and not for a lock that is held for too long."""
    queued: float = 0.0
    """Share of the time in which its thread was ready and had no CPU; 0 also if that is not known."""
    names_own: bool = False
    """The label is a function of the job's own that runs, and calls nothing: its name may mean anything."""
    calls: tuple[Call, ...] = ()
    """Calls of libraries that the job's own frames make, other than the innermost frame; the innermost first."""
    protocol: bool = False
    """Whether the same call of the job's own code has called a function of pickle's protocol in one of the stacks."""

    @classmethod
    def of(cls, each: StackStretch, offset_ns: int) -> Stack:
        """Return a stretch on the common clock. The clock of the process is `offset_ns` ahead of it."""
        start, end = each.start_unix_ns - offset_ns, each.end_unix_ns - offset_ns
        label = _label(each)
        return cls(
            start,
            end,
            label,
            _own_call(each, label),
            _line(each),
            tuple(frame.module for frame in each.frames),
            end - (end - start) // max(each.samples, 1),
            _wants_cpu(each),
            _waits(each.frames) and label != WORKER,
            min((each.run_queue_seconds or 0.0) * 1e9 / max(end - start, 1), 1.0),
            each.call is None and each.frames[0].own,
            each.calls,
            _pickles(each.frames),
        )

    @property
    def activity(self) -> str:
        """What the thread did, and where in the job's own code: ``json.loads in parse (train.py:12)``."""
        if not self.line:
            return self.call
        return self.line if self.line.startswith(f"{self.call} (") else f"{self.call} in {self.line}"

    @property
    def computes(self) -> bool:
        """Whether its thread computed. Without its CPU time, a call whose name is that of a wait does not show it."""
        if self.waits or COLLECTIVES in self.modules or self.synchronises:
            return False
        return not self.shows(IDLE) if self.wants_cpu is None else self.wants_cpu

    @property
    def synchronises(self) -> bool:
        """Whether it shows a call that waits for a device, for its work or for a collective that is queued there."""
        return bool(SYNCHRONISES.search(self.label))

    @property
    def awaits(self) -> bool:
        """Whether its thread waited for another thread, process or device."""
        if self.waits or COLLECTIVES in self.modules:
            return True
        if SLEEPS.search(self.label):
            return False
        return self.shows(SURELY_IDLE) if self.wants_cpu is None else not self.wants_cpu

    def shows(self, calls: re.Pattern[str]) -> bool:
        """Return whether its label is that of a call of some names."""
        return not self.names_own and bool(calls.search(self.label))


def _own_call(stretch: StackStretch, label: str) -> str:
    """Return what the job's own code calls; if that is not known, the label."""
    if label in (COMPILE, WORKER, SEMAPHORE) or stretch.frames[0].own or not stretch.calls:
        return label
    return stretch.calls[0].name or label


def _label(stretch: StackStretch) -> str:
    if stretch.compiles:
        return COMPILE
    modules = [frame.module for frame in stretch.frames]
    taken_by_loader = LOADER in modules and QUEUES.intersection(modules[: modules.index(LOADER)])
    if taken_by_loader and not _wants_cpu(stretch):
        return WORKER
    return SEMAPHORE if _is_semaphore(stretch.frames) else stretch.label


def _pickles(frames: Sequence[Frame]) -> bool:
    """Return whether a frame of the job makes a call that has called a function of pickle's protocol.

    So does a pickler in C, which has no frame, by whatever name the job calls it.
    """
    return any(
        outer.own and PROTOCOL.fullmatch(inner.function.rpartition(".")[2])
        for inner, outer in pairwise(frames)
    )


def _line(stretch: StackStretch) -> str:
    frame = stretch.caller or (None if stretch.compiles else stretch.frames[0])
    return "" if frame is None else f"{frame.function} ({frame.file}:{frame.line})"


def _waits(frames: Sequence[Frame]) -> bool:
    if tuple(frame.module for frame in frames[:2]) == EVENT_LOOP:
        return True
    function = frames[0].function.rpartition(".")[2]
    joins = function in {"wait", "join", "_wait_for_tstate_lock"}
    return frames[0].module == "threading.py" and joins and not _is_semaphore(frames)


def _is_semaphore(frames: Sequence[Frame]) -> bool:
    """Return whether a thread waits in `threading.Semaphore.acquire`."""
    names = [(frame.module, frame.function.rpartition(".")[2]) for frame in frames[:2]]
    return names == [("threading.py", "wait"), ("threading.py", "acquire")]


class Task(NamedTuple):
    """What another thread than that of the windows did, on the common clock [ns]."""

    name: str
    """The function that its pool or `threading.Thread` runs."""
    pool: bool
    stack: Stack


@dataclass(frozen=True, slots=True)
class Signs:
    """The evidence of one process, for the thread that is followed."""

    stacks: Sequence[Stack] = ()
    collecting: Intervals = field(default_factory=lambda: EMPTY)
    """While Python's garbage collector stopped it."""
    regions: Sequence[tuple[int, int, float]] = ()
    """Regions as (start, end, seconds of CPU time)."""
    tasks: Sequence[Task] = ()
    """What other threads did that did not wait for work."""
    held: Sequence[HeldTasks] = ()
    """Coroutines of the thread that waited for a lock or semaphore, on the common clock."""
    awaited: Sequence[AwaitedCalls] = ()
    """Calls that a coroutine of the thread awaited one after the other, on the common clock."""
    _ends: Sequence[int] = field(init=False)
    """For each stack, the latest end of it and of all stacks before it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", [*accumulate((stack.end for stack in self.stacks), max)])

    @classmethod
    def of(cls, evidence: Evidence, offset_ns: int, main: int | None) -> Signs:
        """Return the evidence of a process.

        Args:
            evidence: what was recorded.
            offset_ns: how far its clock is ahead of the common one.
            main: the native id of the thread that is followed; None: the one that opened most windows and regions.
        """
        if main is None:
            counts = Counter(each.thread for each in (*evidence.captures, *evidence.regions))
            main = counts.most_common(1)[0][0] if counts else None
        stacks, tasks = [], []
        for each in evidence.stretches:
            if each.recorder:
                continue
            stack = Stack.of(each, offset_ns)
            if each.thread == main:
                stacks.append(stack)
            elif each.task is not None and not stack.waits:
                tasks.append(Task(each.task, each.pool, stack))
        pickling = {(each.call, each.line) for each in stacks if each.protocol}
        stacks = [each._replace(protocol=(each.call, each.line) in pickling) for each in stacks]
        collecting = Intervals.of(
            (start - offset_ns, end - offset_ns)
            for each in evidence.collections
            for start, end in _pauses(each)
        )
        regions = [
            (each.start_unix_ns - offset_ns, each.end_unix_ns - offset_ns, each.cpu_seconds)
            for each in evidence.regions
            if each.thread == main
        ]
        held = [_moved(each, offset_ns) for each in evidence.held if each.thread == main]
        awaited = [_moved(each, offset_ns) for each in evidence.awaited if each.thread == main]
        ordered = sorted(stacks, key=lambda stack: stack.start)
        return cls(ordered, collecting, regions, tasks, held, awaited)

    def shown(self, when: Intervals) -> Iterator[tuple[Stack, int, int]]:
        """Yield the stacks of some intervals, each with its part: (stack, start, end).

        A stretch lasts until the next sample. If all samples of a stretch were before the interval, the next stretch counts
        from the beginning of the interval. Of a stretch of equal samples, what ran between two of them is not known: a part
        that is shorter than that counts only if the intervals have two thirds of the stretch.
        """
        for low, high in when.pairs():
            since = None
            for at in range(bisect_right(self._ends, low), len(self.stacks)):
                stack = self.stacks[at]
                if stack.start >= high:
                    break
                if stack.last < low < stack.end < low + LONGEST_SPILL_NS:
                    since = low
                    continue
                start = max(stack.start, low)
                if since is not None and start < low + LONGEST_SPILL_NS:
                    start = low
                since = None
                end = min(stack.end, high)
                if stack.end > low and (
                    end - start >= SAMPLE_NS
                    or 3 * when.clip(stack.start, stack.end).total >= 2 * (stack.end - stack.start)
                ):
                    yield stack, start, end

    def queued(self, when: Intervals) -> float:
        """Return for how many nanoseconds of some intervals the thread was ready and had no CPU."""
        return sum(stack.queued * (end - start) for stack, start, end in self.shown(when))

    def activity(self) -> Activity:
        """Return when the thread computed and when it waited, and when other threads worked.

        A thread in a collective, or in a call that waits for a device, may use the CPU and wait all the same. One that sleeps waits for a time, and
        for nothing else that is known.
        """
        return Activity(
            Intervals.of((each.start, each.end) for each in self.stacks if each.computes),
            Intervals.of((each.start, each.end) for each in self.stacks if each.awaits),
            Intervals.of((each.stack.start, each.stack.end) for each in self.tasks if each.stack.computes),
            Intervals.of(
                (each.start, each.last - round(each.queued * (each.end - each.start)))
                for each in self.stacks
                if each.awaits and COLLECTIVES not in each.modules
            ),
            Intervals.of((each.start, each.end) for each in self.stacks if each.synchronises),
            [(each.last, each.end) for each in self.stacks],
        )

    def in_collectives(self, when: Intervals) -> Intervals:
        """Return the part of some intervals in which the thread was in calls of collectives."""
        return Intervals.of(
            (start, end) for stack, start, end in self.shown(when) if COLLECTIVES in stack.modules
        )

    def share(self, when: Intervals, calls: re.Pattern[str]) -> float:
        """Return the share of some intervals that calls of some names have."""
        shown = sum(end - start for stack, start, end in self.shown(when) if stack.shows(calls))
        return shown / max(when.total, 1)

    def are_idle(self, when: Intervals) -> bool:
        """Return whether the thread waited for at least half of some intervals, by the labels and its CPU time, and whether they are long enough to tell."""
        idle = sum(
            end - start
            for stack, start, end in self.shown(when)
            if stack.shows(SURELY_IDLE if stack.wants_cpu is None else IDLE) and not stack.wants_cpu
        )
        return when.total >= SHORTEST_NS and idle >= when.total / 2


_Moved = TypeVar("_Moved", HeldTasks, AwaitedCalls)


def _moved(line: _Moved, offset_ns: int) -> _Moved:
    """Return a line on the common clock."""
    start, end = line.start_unix_ns - offset_ns, line.end_unix_ns - offset_ns
    return replace(line, start_unix_ns=start, end_unix_ns=end)


def _wants_cpu(stretch: StackStretch) -> bool | None:
    if stretch.cpu_seconds is None or stretch.run_queue_seconds is None:
        return None
    busy = stretch.cpu_seconds + stretch.run_queue_seconds
    return 2e9 * busy >= stretch.end_unix_ns - stretch.start_unix_ns


def _pauses(run: Collection) -> Iterator[tuple[int, int]]:
    """Yield the pauses of a run of collections. Between them the process works; where they are in the run is not recorded."""
    count = max(1, min(run.count, MOST_PAUSES))
    length = run.end_unix_ns - run.start_unix_ns
    pause = min(round(run.seconds * 1e9), length) // count
    for number in range(count):
        end = run.start_unix_ns + length * (number + 1) // count
        yield end - pause, end


PROTOCOL = re.compile(
    r"__(reduce|reduce_ex|getstate|setstate|getnewargs|getnewargs_ex|newobj|newobj_ex)__|_slotnames|_reconstructor|_load_from_bytes|_rebuild_\w+"
)
"""Functions that a pickler calls, or that it makes unpicklers call. `copy` calls them from frames of its own."""
MOST_PAUSES = 20
"""The pauses of a run of collections are spread evenly over at most this many parts of it."""
LONGEST_SPILL_NS = 5 * SAMPLE_NS // 4
"""A stretch ends at most this long after its last sample."""
SHORTEST_NS = 2 * SAMPLE_NS
"""Sampled stacks show too little of a shorter time."""
IDLE = re.compile(r"(?i)sleep|wait|acquire|select|poll|join|\.get\b|result|recv|epoll")
"""Calls that wait if they use no CPU."""
SLEEPS = re.compile(r"(?i)sleep")
SYNCHRONISES = re.compile(r"synchronize\b|\.(?:item|tolist|cpu|numpy)$")
"""Calls that wait for a device, and may use the CPU meanwhile."""
SURELY_IDLE = re.compile(r"(?i)sleep|wait|acquire|epoll|selector")
"""Of these, those whose CPU time need not be known."""
