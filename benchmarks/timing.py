"""Measure nanoseconds per call, by interleaved rounds of a compiled loop.

Every subject is timed in every round, and the order rotates. So a slow phase of the machine affects
all of them alike. The garbage collector is off, as in ``timeit``. Two clocks are read: the
processor time of the whole process, and that of the calling thread, which does not include
background threads.
"""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from textwrap import indent

from benchmarks.figures import Figure

__all__ = ["Effort", "Subject", "Timed", "time_subjects"]

Clocks = tuple[int, int]
"""Nanoseconds of the process, and of the thread."""

_LOOP = """
{kind} loop(_rounds, _process, _thread):
    _t0, _p0 = _thread(), _process()
    for _ in _rounds:
{body}
    _p1, _t1 = _process(), _thread()
    return _p1 - _p0, _t1 - _t0
"""


@dataclass(frozen=True)
class Subject:
    """A statement as a user would write it, and the names in it."""

    name: str
    statement: str
    names: Mapping[str, object] = field(default_factory=dict)
    base: str | None = None
    """The name of the subject that is the bare call of this one. None: the statement has none."""
    ours: bool = False
    note: str = ""
    settle: Callable[[], None] | None = None
    """Called between two timings, without being measured."""


@dataclass(frozen=True)
class Effort:
    """How long to measure: the number of rounds, and the seconds of one subject in one round."""

    rounds: int
    seconds: float

    @classmethod
    def usual(cls) -> Effort:
        return cls(rounds=21, seconds=0.015)

    @classmethod
    def quick(cls) -> Effort:
        return cls(rounds=2, seconds=0.0005)


@dataclass(frozen=True)
class Timed:
    """The cost of a subject per call in nanoseconds, minus the loop around it."""

    process: Figure
    thread: Figure


def _compiled(subject: Subject) -> Callable[[Iterable[None]], Clocks]:
    names = dict(subject.names)
    awaits = "await " in subject.statement or "async with" in subject.statement
    source = _LOOP.format(
        kind="async def" if awaits else "def",
        body=indent(subject.statement, " " * 8),
    )
    exec(compile(source, f"<benchmark: {subject.name}>", "exec"), names)
    loop = names["loop"]

    def run(rounds: Iterable[None]) -> Clocks:
        result = loop(rounds, time.process_time_ns, time.thread_time_ns)  # type: ignore[operator]
        if inspect.iscoroutine(result):
            # none of these coroutines ever waits: the first send runs the loop to its end
            try:
                result.send(None)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            raise RuntimeError(f"{subject.name}: the statement waited for something")
        return result  # type: ignore[no-any-return]

    return run


def time_subjects(subjects: Sequence[Subject], effort: Effort) -> dict[str, Timed]:
    """Time the subjects in interleaved rounds, minus an empty loop."""
    everything = [Subject("<loop>", "pass"), *subjects]
    loops = [_compiled(subject) for subject in everything]
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        counts = [_count(loop, effort.seconds) for loop in loops]
        process: list[list[float]] = [[] for _ in everything]
        thread: list[list[float]] = [[] for _ in everything]
        order = list(range(len(everything)))
        for _ in range(effort.rounds):
            for index in order:
                settle = everything[index].settle
                if settle is not None:
                    settle()
                took = loops[index](repeat(None, counts[index]))
                process[index].append(took[0] / counts[index])
                thread[index].append(took[1] / counts[index])
            order = order[1:] + order[:1]
    finally:
        if collecting:
            gc.enable()
    empty = Timed(Figure.of(process[0]), Figure.of(thread[0]))
    return {
        subject.name: Timed(
            Figure.of(process[index]).less(empty.process), Figure.of(thread[index]).less(empty.thread)
        )
        for index, subject in enumerate(everything)
        if index
    }


def _count(loop: Callable[[Iterable[None]], Clocks], seconds: float) -> int:
    """Return how many calls take about this long. This also warms up the loop."""
    count = 64
    while True:
        took = loop(repeat(None, count))[1]
        if took >= seconds * 5e8 or count >= 10_000_000:
            return max(1, int(count * seconds * 1e9 / max(took, 1)))
        count *= 4
