"""Read the evidence of a recorded step from the span files: garbage collections, stacks, CPU times.

Lines of the kinds `gc`, `stack`, `tasks`, `awaits` and `usage` are written at the end of a capture; the line of a region
in a recorded window has its CPU time. Times are nanoseconds of the clock of that host since the Unix
epoch, as of all spans. A damaged line is left out and counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepprof.run.fields import LARGEST_NS
from stepprof.run.layout import SPANS
from stepprof.run.spans import EVIDENCE, read_spans

SAMPLE_NS = 25_000_000
"""Time between two samples of a stack, and so the precision of a stretch of equal samples."""
MOST_LINES = 200_000
"""Maximum number of lines of each kind of one process."""

DEEPEST = 64
LONGEST_TEXT = 255


class Frame(NamedTuple):
    """A frame of a stack."""

    function: str
    file: str
    """The base name of the file."""
    line: int
    own: bool = False
    """It is the job's own code. False also if that is not known."""

    @property
    def module(self) -> str:
        """The file of a library, by which its functions are known; "" if it is the job's own, whose `copy.py` may be anything."""
        return "" if self.own else self.file


class Call(NamedTuple):
    """A call of a library that a frame of the job's own code makes."""

    name: str | None
    """As the source writes it; None: not known."""
    file: str
    """The base name of the file of the called function; "" if that is a function in C, which has called the job's own code."""


@dataclass(frozen=True, slots=True)
class _Interval:
    thread: int
    """The native id of the thread."""
    step: int | None
    role: str | None
    start_unix_ns: int
    end_unix_ns: int


@dataclass(frozen=True, slots=True)
class Collection(_Interval):
    """A garbage collection, or a run of short ones. It stops every thread of the process."""

    seconds: float
    """Seconds in collections; a run of short ones lasts longer than that."""
    count: int
    generation: int
    collected: int
    """Number of objects that were freed."""


@dataclass(frozen=True, slots=True)
class StackStretch(_Interval):
    """Consecutive equal samples of the stack of a thread."""

    samples: int
    frames: tuple[Frame, ...]
    """The innermost first."""
    call: str | None
    """The call that the innermost line makes, as the source writes it; None: the function itself runs, or
    the call is not known.
    """
    cpu_seconds: float | None
    """CPU time of the thread; None: not known."""
    run_queue_seconds: float | None
    """How long the thread was ready and had no CPU; None: not known."""
    recorder: bool = False
    """The thread was in stepprof's own code."""
    task: str | None = None
    """The function that a pool or `threading.Thread` runs on the thread; None: it has none, or it is not known."""
    pool: bool = False
    """A thread pool runs it."""
    caller: Frame | None = None
    """The innermost frame of the job's own code, if that is not the innermost of all; None: it is, or is not known."""
    compiles: bool = False
    """The thread was in torch.compile, at work on a function."""
    calls: tuple[Call, ...] = ()
    """Calls of libraries that the job's own frames make, other than the innermost frame; the innermost first."""

    @property
    def label(self) -> str:
        """The call, or else the function."""
        return self.call or self.frames[0].function


@dataclass(frozen=True, slots=True)
class HeldTasks(_Interval):
    """The coroutines in a function that awaits a lock or semaphore of asyncio. `thread` runs their event loop."""

    function: str
    waiting: int
    """How many waited for it."""
    passed: int
    """How many coroutines were in the function and did not wait."""
    others: int
    """How many were not in the function."""


@dataclass(frozen=True, slots=True)
class AwaitedCalls(_Interval):
    """Calls of one function that a coroutine awaited one after the other. `thread` runs their event loop."""

    function: str
    """What was called."""
    caller: str
    """The function of the coroutine."""
    calls: int
    """Calls below the time between two samples are missing."""
    seconds: float
    """The time of all of them."""
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class RegionCpu(_Interval):
    """A region of a recorded window, with the CPU time of its thread."""

    name: str
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ThreadUse(_Interval):
    """A sampled thread during the capture."""

    cpu_seconds: float | None
    run_queue_seconds: float | None
    samples: int
    dropped: int
    """Stretches that were not kept."""


@dataclass(frozen=True, slots=True)
class CaptureUse(_Interval):
    """The process during the capture. `thread` opened it."""

    read_bytes: int | None
    """Read from storage, without what the page cache had; None: not known."""
    write_bytes: int | None
    collections_dropped: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of one process."""

    rank: int | str
    host: str | None
    pid: int | None
    collections: tuple[Collection, ...] = ()
    stretches: tuple[StackStretch, ...] = ()
    held: tuple[HeldTasks, ...] = ()
    awaited: tuple[AwaitedCalls, ...] = ()
    regions: tuple[RegionCpu, ...] = ()
    threads: tuple[ThreadUse, ...] = ()
    captures: tuple[CaptureUse, ...] = ()


_Found = defaultdict[str, list[Any]]
"""The evidence of one process, by the field of `Evidence`."""


def read_evidence(path: Path, step: int, *, findings: list[dict[str, Any]] | None = None) -> list[Evidence]:
    """Return the evidence of a step, one for each process that has some, in the order of the files.

    Args:
        path: the run's folder.
        step: the number of the step.
        findings: receives {file, problem} for each file with damaged lines.
    """
    processes: dict[tuple[Any, Any, Any], _Found] = {}
    damaged = 0
    for span in read_spans(path, step=step, findings=findings, evidence=True):
        kind = span.get("kind")
        if kind in EVIDENCE or (kind == "region" and "cpu" in span):
            found = processes.setdefault((span["rank"], span["host"], span["pid"]), defaultdict(list))
            try:
                _take(found, kind, span)
            except (KeyError, TypeError, ValueError, OverflowError):
                damaged += 1
    if damaged and findings is not None:
        problem = f"{damaged} damaged line{'s' * (damaged > 1)} of evidence ignored"
        findings.append({"file": SPANS, "problem": problem})
    made = []
    for process, found in processes.items():
        items: dict[str, Any] = {name: tuple(of_kind) for name, of_kind in found.items()}
        made.append(Evidence(*process, **items))
    return made


def _take(found: _Found, kind: object, span: Mapping[str, Any]) -> None:
    """Add the evidence of a line. Raises KeyError, TypeError or ValueError if it is damaged."""
    start, attributes = span["start"], _Attributes(span["attrs"] if kind in EVIDENCE else {})
    where = (_integer(span["thread"]), span.get("step"), span.get("role"), start, start + span["dur"])
    if kind == "region":
        _add(found["regions"], RegionCpu(*where, span["name"], span["cpu"] / 1e9))
    elif kind == "gc":
        seconds, count = attributes.seconds("busy"), attributes.count("count")
        generation, collected = attributes.count("generation"), attributes.count("collected")
        _add(found["collections"], Collection(*where, seconds, count, generation, collected))
    elif kind == "stack":
        samples, frames, call = attributes.count("samples"), attributes["frames"], attributes["call"]
        stack = tuple(map(_frame, frames[:DEEPEST]))
        if not stack:
            raise ValueError("no frame")
        call = None if call is None else _text(call)
        recorder = attributes.get("recorder") is True
        task = attributes.get("task")
        caller = attributes.get("caller")
        stretch = StackStretch(
            *where,
            samples,
            stack,
            call,
            *attributes.times(),
            recorder,
            task=None if task is None else _text(task),
            pool=attributes.get("pool") is True,
            caller=None if caller is None else _frame(caller),
            compiles=attributes.get("compiles") is True,
            calls=tuple(map(_call, attributes.get("calls", ())[:DEEPEST])),
        )
        _add(found["stretches"], stretch)
    elif kind == "tasks":
        counts = (attributes.count(key) for key in ("waiting", "passed", "others"))
        _add(found["held"], HeldTasks(*where, _text(span["name"]), *counts))
    elif kind == "awaits":
        calls, caller = attributes.count("calls"), _text(attributes["caller"])
        times = attributes.seconds("busy"), attributes.seconds("longest")
        _add(found["awaited"], AwaitedCalls(*where, _text(span["name"]), caller, calls, *times))
    elif span["name"] == "thread":
        samples, dropped = attributes.count("samples"), attributes.count("dropped")
        _add(found["threads"], ThreadUse(*where, *attributes.times(), samples, dropped))
    else:
        stored = (attributes.known("read_bytes"), attributes.known("write_bytes"))
        _add(found["captures"], CaptureUse(*where, *stored, attributes.count("collections_dropped")))


def _add(items: list[Any], item: object) -> None:
    if len(items) < MOST_LINES:
        items.append(item)


class _Attributes(dict[str, Any]):
    """The attributes of a line. Each method raises KeyError, TypeError or ValueError."""

    def count(self, key: str) -> int:
        return _integer(self[key])

    def known(self, key: str) -> int | None:
        return _integer(self[key]) if key in self else None

    def seconds(self, key: str) -> float:
        return _integer(self[key]) / 1e9

    def times(self) -> tuple[float | None, float | None]:
        """Return the CPU time and the run-queue delay; None: not known."""
        return (self.seconds("cpu"), self.seconds("run_queue")) if "cpu" in self else (None, None)


def _integer(value: object) -> int:
    if type(value) is not int or not 0 <= value < LARGEST_NS:
        raise ValueError("no count")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError("no text")
    return value[:LONGEST_TEXT]


def _call(value: object) -> Call:
    if type(value) is not list or len(value) != 2:
        raise ValueError("no call")
    name, file = value
    return Call(None if name is None else _text(name), _text(file))


def _frame(value: object) -> Frame:
    if type(value) is not list or len(value) < 3 or value[3:] not in ([], [True], [False]):
        raise ValueError("no frame")
    return Frame(_text(value[0]), _text(value[1]), _integer(value[2]), *value[3:])
