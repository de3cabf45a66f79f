"""The facts that findings are made from: the critical path of the step, and the data about its processes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from stepprof.analysis.findings.neighbours import Neighbours
from stepprof.analysis.report.critical_path import Segment, Timeline
from stepprof.analysis.report.intervals import EMPTY, Intervals
from stepprof.analysis.report.nesting import Place
from stepprof.analysis.report.schema import Finding, Rollout
from stepprof.analysis.report.step_graph import StepGraph
from stepprof.analysis.report.wording import seconds_text
from stepprof.run.evidence import SAMPLE_NS, Collection, Evidence, Frame, StackStretch

__all__ = [
    "COLLECTIVES",
    "Facts",
    "Held",
    "Ledger",
    "Part",
    "Recomputing",
    "Signs",
    "Stack",
    "Task",
    "last_part",
    "place_of",
    "share_of",
]


COLLECTIVES = "distributed_c10d.py"
"""The module of torch.distributed's calls: a wait in them is a wait for other ranks."""

EVENT_LOOP = ("selectors.py", "base_events.py")
"""The innermost modules of a thread whose coroutines all wait."""


class Stack(NamedTuple):
    """What a thread was doing, on the common clock [ns]."""

    start: int
    end: int
    label: str
    """The call, or the function: ``time.sleep``."""
    place: str
    """The innermost frame: ``function (file:line)``."""
    modules: tuple[str, ...]
    """The files of its frames, the innermost first."""
    last: int
    """Its last sample."""
    off_cpu: bool = False
    """Whether its thread used little CPU and was not ready for more; False also if that is not known."""

    waits: bool = False
    """Whether it waits for another thread or for coroutines, and not for a lock that is held for too long."""
    queued: float = 0.0
    """Share of the time in which its thread was ready and had no CPU; 0 also if that is not known."""

    @classmethod
    def of(cls, each: StackStretch, offset_ns: int) -> Stack:
        """Return a stretch on the common clock, which that of the process is ahead of by some nanoseconds."""
        start, end = each.start_unix_ns - offset_ns, each.end_unix_ns - offset_ns
        inner = each.frames[0]
        return cls(
            start,
            end,
            "Semaphore.acquire" if _is_semaphore(each.frames) else each.label,
            f"{inner.function} ({inner.file}:{inner.line})",
            tuple(frame.file for frame in each.frames),
            end - (end - start) // max(each.samples, 1),
            _is_off_cpu(each),
            _waits(each.frames),
            min((each.run_queue_seconds or 0.0) * 1e9 / max(end - start, 1), 1.0),
        )


def _waits(frames: Sequence[Frame]) -> bool:
    if tuple(frame.file for frame in frames[:2]) == EVENT_LOOP:
        return True
    function = frames[0].function.rpartition(".")[2]
    joins = function in {"wait", "join", "_wait_for_tstate_lock"}
    return frames[0].file == "threading.py" and joins and not _is_semaphore(frames)


def _is_semaphore(frames: Sequence[Frame]) -> bool:
    """Return whether a thread waits in `threading.Semaphore.acquire`."""
    names = [(frame.file, frame.function.rpartition(".")[2]) for frame in frames[:2]]
    return names == [("threading.py", "wait"), ("threading.py", "acquire")]


class Held(NamedTuple):
    """Coroutines in a function that awaits a lock or semaphore of asyncio, on the common clock [ns]."""

    start: int
    end: int
    function: str
    waiting: int
    passed: int
    """How many were in the function and did not wait there."""
    others: int
    """How many were not in the function."""


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
    held: Sequence[Held] = ()
    """Coroutines of the thread that waited for a lock or semaphore."""
    _ends: Sequence[int] = field(init=False)
    """The latest end of each stack and those before it."""

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
        pauses = [
            (start - offset_ns, end - offset_ns)
            for each in evidence.collections
            for start, end in _pauses(each)
        ]
        regions = [
            (each.start_unix_ns - offset_ns, each.end_unix_ns - offset_ns, each.cpu_seconds)
            for each in evidence.regions
            if each.thread == main
        ]
        collecting = Intervals.union([start for start, _ in pauses], [end for _, end in pauses])
        held = [
            Held(
                each.start_unix_ns - offset_ns,
                each.end_unix_ns - offset_ns,
                each.function,
                each.waiting,
                each.passed,
                each.others,
            )
            for each in evidence.held
            if each.thread == main
        ]
        return cls(sorted(stacks, key=lambda stack: stack.start), collecting, regions, tasks, held)

    def shown(self, when: Intervals) -> Iterator[tuple[Stack, int, int]]:
        """Yield the stacks of some intervals, each with its part: (stack, start, end).

        A stretch lasts until the next sample. If it began before an interval and all of its samples were before it too, the
        next stretch shows what the thread did there from the begin.
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
                if stack.end > low:
                    yield stack, start, min(stack.end, high)

    def queued(self, when: Intervals) -> float:
        """Return for how many nanoseconds of some intervals the thread was ready and had no CPU."""
        return sum(stack.queued * (end - start) for stack, start, end in self.shown(when))

    def idle(self, when: Intervals) -> int:
        """Return for how many nanoseconds of some intervals the labels mark a waiting thread."""
        return sum(end - start for stack, start, end in self.shown(when) if IDLE.search(stack.label))


def _is_off_cpu(stretch: StackStretch) -> bool:
    """Return whether a thread had and wanted the CPU for less than half of a stretch."""
    if stretch.cpu_seconds is None or stretch.run_queue_seconds is None:
        return False
    busy = stretch.cpu_seconds + stretch.run_queue_seconds
    return 2e9 * busy < stretch.end_unix_ns - stretch.start_unix_ns


def _pauses(run: Collection) -> Iterator[tuple[int, int]]:
    """Yield the pauses of a run of collections. Between them the process works; where they are in the run is not recorded."""
    count = max(1, min(run.count, MOST_PAUSES))
    length = run.end_unix_ns - run.start_unix_ns
    pause = min(round(run.seconds * 1e9), length) // count
    for number in range(count):
        end = run.start_unix_ns + length * (number + 1) // count
        yield end - pause, end


MOST_PAUSES = 20
"""The pauses of a run of collections are spread evenly over at most this many parts of it."""
LONGEST_SPILL_NS = 5 * SAMPLE_NS // 4
"""A stretch ends at most this long after its last sample."""
SHORTEST_NS = 2 * SAMPLE_NS
"""Of a shorter time, sampled stacks say too little."""
IDLE = re.compile(r"(?i)sleep|wait|acquire|select|poll|join|\.get\b|result|recv|epoll")


class Recomputing(NamedTuple):
    """The time in which an engine's worker computed preempted sequences again."""

    preemptions: int
    """What the engine counted."""
    when: Intervals
    retracts: bool = False
    """SGLang: it computes a sequence again as a prompt."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One step on one clock."""

    start: int
    """Second 0 of the report [ns]."""
    end: int
    path: Sequence[Segment]
    timelines: Mapping[str, Timeline]
    """By the label of the process."""
    rollouts: Sequence[Rollout]
    graph: StepGraph
    """Replays the step without a cause."""
    signs: Mapping[str, Signs] = field(default_factory=dict)
    """By the label of the process."""
    engine_roles: frozenset[str | None] = frozenset()
    recomputing: Mapping[str, Recomputing] = field(default_factory=dict)
    """By the label of the process."""
    neighbours: Neighbours | None = None
    """The steps around this one, in the spans; None: there are none."""

    @property
    def seconds(self) -> float:
        """The length of the step."""
        return (self.end - self.start) / 1e9

    def at(self, time: int) -> float:
        """Return a time as seconds of the report."""
        return (time - self.start) / 1e9

    def alike(self, part: Part) -> Iterator[Part]:
        """Yield what each process did in the region of a part and below: a change of the code changes all of them."""
        depth = len(part.region)
        for label, each in self.timelines.items():
            those = [
                (start, end)
                for start, end, role, region in each.stretches
                if role == part.role and region[:depth] == part.region
            ]
            if those:
                when = Intervals.union([start for start, _ in those], [end for _, end in those])
                yield Part(label, part.role, part.region, when)


@dataclass(frozen=True, slots=True)
class Part:
    """The work of one process in one region, as far as it is on the path."""

    process: str
    role: str | None
    region: tuple[str, ...]
    when: Intervals

    @property
    def name(self) -> str | None:
        """The innermost region."""
        return self.region[-1] if self.region else None


class Ledger:
    """Gives each moment of the step to one finding at most.

    Args:
        facts: of the step.
        least: seconds below which nothing is claimed.
    """

    def __init__(self, facts: Facts, least: float) -> None:
        self.facts = facts
        self.least = least
        self.free = Intervals.one(facts.start, facts.end)
        self.found: list[Finding] = []
        self.named_waits: dict[tuple[str, int], int] = {}
        """The nanoseconds of waits, by (process, end), that findings about awaited ranks have named."""
        self._whole: dict[tuple[str, ...], list[Part]] = {}

    def claim(
        self,
        part: Part,
        when: Intervals,
        topic: str,
        text: str,
        *,
        why: str,
        advice: str,
        assumption: str | None,
        without: Mapping[str, Intervals] | None = None,
        shared: bool = False,
    ) -> bool:
        """Add a finding for the unclaimed part of some time; return whether that is long enough.

        Args:
            part: the place of the finding.
            when: the time that it explains.
            topic: its kind.
            text: its sentence; ``{seconds}`` stands for its seconds.
            why: its evidence.
            advice: what to try.
            assumption: what the estimate of the gain assumes; None: no gain is computed.
            without: by process, the time that it would not spend without the cause; None: that of the finding.
            shared: whether the cause lies in no single process.
        """
        free = self.free & when
        seconds = free.total / 1e9
        if not len(free) or seconds < self.least:
            return False
        self.free -= free
        longest = max(free.pairs(), key=lambda pair: pair[1] - pair[0])
        saves = None if assumption is None else self._gain(without or {part.process: free}, seconds)
        self.found.append(
            Finding(
                text.replace("{seconds}", seconds_text(seconds)),
                topic,
                seconds,
                process=None if shared else part.process,
                role=part.role,
                region=part.name,
                start=self.facts.at(longest[0]),
                end=self.facts.at(longest[1]),
                why=why,
                advice=advice,
                saves=saves,
                assumption=None if saves is None else assumption,
            )
        )
        return True

    def _gain(self, without: Mapping[str, Intervals], seconds: float) -> float | None:
        """Return how much shorter the step would be, at most the seconds of the finding; None: not known."""
        gain = self.facts.graph.gain(without)
        return None if gain is None else min(max(gain / 1e9, 0.0), seconds)

    def short(self, process: str, text: str, *, advice: str) -> None:
        """Say that the step is too short to be judged; nothing is claimed any more."""
        self.free = EMPTY
        self.found.append(Finding(text, "short", process=process, advice=advice))

    def book(self, when: Intervals) -> None:
        """Take time out that is no finding about the job."""
        self.free -= when

    def merged(self, key: Callable[[Part], tuple[str, tuple[str, ...]] | None], *kinds: str) -> list[Part]:
        """Return parts that have one place together, the longest first.

        Args:
            key: returns the process and the region that a part belongs to; None: it is left out.
            kinds: of the path.
        """
        found: dict[tuple[str, str | None, tuple[str, ...]], Intervals] = {}
        for part in self._parts(kinds):
            place = key(part)
            if place is not None:
                whole = (place[0], part.role, place[1])
                found[whole] = found.get(whole, EMPTY) | (part.when & self.free)
        return sorted((Part(*each, when) for each, when in found.items()), key=lambda part: -part.when.total)

    def parts(self, *kinds: str) -> Iterator[Part]:
        """Yield the parts of the path of some kinds, the longest first, with their unclaimed time."""
        for part in self._parts(kinds):
            free = part.when & self.free
            if free.total >= self.least * 1e9:
                yield Part(part.process, part.role, part.region, free)

    def _parts(self, kinds: tuple[str, ...]) -> list[Part]:
        """Return the parts of the path of some kinds, the longest first."""
        if kinds not in self._whole:
            found: dict[tuple[str, str | None, tuple[str, ...]], list[Segment]] = {}
            for segment in self.facts.path:
                if segment.kind in kinds:
                    found.setdefault((segment.process, segment.role, segment.region), []).append(segment)
            parts = [
                Part(*key, Intervals.union([each.start for each in of], [each.end for each in of]))
                for key, of in found.items()
            ]
            self._whole[kinds] = sorted(parts, key=lambda part: -part.when.total)
        return self._whole[kinds]


def place_of(facts: Facts, process: str, role: str | None, region: tuple[str, ...]) -> Place | None:
    """Return a region of a process by its path; None: it has none there."""
    for nest in facts.timelines[process].nests:
        for at, place in enumerate(nest.places):
            if not place.window and place.role == role and nest.path(at) == region:
                return place
    return None


def share_of(when: Intervals, share: float) -> Intervals:
    """Return the last part of each interval, as a share of its length.

    >>> share_of(Intervals.union([0, 10], [4, 20]), 0.5).pairs()
    [(2, 4), (15, 20)]
    """
    length = ((when.end - when.start) * min(max(share, 0.0), 1.0)).astype(np.int64)
    return Intervals.union(when.end - length, when.end)


def last_part(when: Intervals, nanoseconds: int) -> Intervals:
    """Return the last nanoseconds of some intervals."""
    kept = EMPTY
    for low, high in reversed(when.pairs()):
        if nanoseconds <= 0:
            break
        begin = max(low, high - nanoseconds)
        kept |= Intervals.one(begin, high)
        nanoseconds -= high - begin
    return kept
