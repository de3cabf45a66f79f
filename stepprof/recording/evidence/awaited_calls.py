"""Count the calls that a coroutine awaits one after the other, without a region of their own.

At each sample of a waiting event loop, the coroutines of its only task that does not wait for other tasks are
noted by weak references: a call has its own coroutine, so another object at the same place is another call.
Objects of the job are followed within one call of C code; see `stacks` for why none is kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat, takewhile
from operator import is_, methodcaller
from types import CodeType, CoroutineType
from typing import Any
from weakref import ref

MOST_TASKS = 8
"""With more tasks nothing is noted."""
MOST = 1_000
"""Maximum number of coroutines and functions whose calls are counted in one capture."""
DEPTH = 32
FEWEST = 2

_call: Any = methodcaller("__call__")
_coroutine: Any = methodcaller("get_coro")


@dataclass(slots=True)
class Awaited:
    """Calls of one function that one coroutine has awaited. Times by `perf_counter_ns`."""

    thread: int
    place: tuple[int | None, str | None]
    """The step and role of the window that was open."""
    codes: tuple[CodeType, ...]
    """Of the task's coroutine, and of those that it awaits, down to the one that awaits the calls."""
    function: CodeType
    """What is called."""
    start_ns: int
    end_ns: int = 0
    calls: int = 0
    busy_ns: int = 0
    """The time of all of them."""
    longest_ns: int = 0


@dataclass(slots=True)
class _Open:
    """A coroutine that is awaited now, or is that of the task."""

    coroutine: Any
    """A weak reference."""
    code: CodeType
    start_ns: int
    serial: int
    """No other coroutine has its number."""
    counts: bool
    """It has waited for nothing that other tasks do."""
    thread: int
    place: tuple[int | None, str | None]


class AwaitedCalls:
    """Follows the coroutines from sample to sample."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, CodeType], Awaited] = {}
        self._threads: defaultdict[int, list[_Open]] = defaultdict(list)
        """The open coroutines of each thread, the outermost first."""
        self._serial = 0

    def found(self) -> list[Awaited]:
        """Return the calls of coroutines that have awaited several."""
        return [each for each in self._found.values() if each.calls >= FEWEST]

    def sample(
        self, thread: int, place: tuple[int | None, str | None], now_ns: int, tasks: Sequence[Any]
    ) -> None:
        """Note which coroutines wait in an event loop of a thread, which has these tasks."""
        opened, rows = self._threads[thread], _only_chain(tasks)
        if not rows:  # the coroutines may go on, and what they wait for is not known
            for each in opened:
                each.counts = False
            return
        counts = _module(rows[-1][1]) not in ("asyncio/queues.py", "asyncio/locks.py")
        mine = [(coroutine, code) for coroutine, code in rows if not _is_asyncio(code)]
        same = 0
        while same < min(len(mine), len(opened)) and opened[same].coroutine is mine[same][0]:
            same += 1
        self._end(opened, now_ns, same)
        for coroutine, code in mine[same:]:
            self._serial += 1
            opened.append(_Open(coroutine, code, now_ns, self._serial, counts, thread, place))
        if not counts:
            for each in opened:
                each.counts = False

    def end_lost(self, now_ns: int) -> None:
        """End the calls whose coroutines exist no longer."""
        for opened in self._threads.values():
            lost = [*map(is_, map(_call, [each.coroutine for each in opened]), repeat(None))]
            self._end(opened, now_ns, lost.index(True) if True in lost else len(lost))

    def end(self, now_ns: int) -> None:
        """End the calls that are still open."""
        for opened in self._threads.values():
            self._end(opened, now_ns, 0)

    def _end(self, opened: list[_Open], now_ns: int, depth: int) -> None:
        """Count the calls of a thread that have ended: all below some depth."""
        for at in range(max(depth, 1), len(opened)):
            each, outer = opened[at], opened[at - 1]
            known = self._found.get((outer.serial, each.code))
            if not each.counts or (known is None and len(self._found) >= MOST):
                continue
            if known is None:
                codes = tuple(one.code for one in opened[:at])
                known = Awaited(each.thread, each.place, codes, each.code, each.start_ns)
                self._found[outer.serial, each.code] = known
            length = now_ns - each.start_ns
            known.calls += 1
            known.busy_ns += length
            known.longest_ns = max(known.longest_ns, length)
            known.end_ns = now_ns
        del opened[depth:]


def _only_chain(tasks: Sequence[Any]) -> list[tuple[Any, CodeType]]:
    """Return the coroutines of the only task that does not wait for other tasks, the outermost first; []: there are
    several such tasks, none, or it is not known.
    """
    if len(tasks) > MOST_TASKS:
        return []
    found = []
    for each in tasks:
        waiter, rows = _chain(each)
        if not rows or waiter is type(None):  # a coroutine of another kind, or one that runs or is about to
            return []
        if not _waits_for_tasks(waiter, rows[-1][1]):
            found.append(rows)
    return found[0] if len(found) == 1 else []


def _chain(reference: Any) -> tuple[type, list[tuple[Any, CodeType]]]:
    """Return the type of what a task waits for; and a weak reference to its coroutine, and its code, and those of each
    coroutine that it awaits.
    """
    now: list[Any] = [None]  # its last item is the coroutine that is looked at; empty at the end
    current = map(now.__getitem__, repeat(-1))
    waiter = map(type, map(getattr, map(_call, (reference,)), repeat("_fut_waiter"), repeat(None)))
    fill = map(now.append, map(_coroutine, filter(None, map(_call, (reference,)))))
    known = takewhile(bool, map(is_, map(type, current), repeat(CoroutineType)))
    codes = map(getattr, current, repeat("cr_code"))
    awaited = map(getattr, current, repeat("cr_await"), repeat(None))
    steps = zip(known, map(ref, current), codes, map(now.__setitem__, repeat(-1), awaited))  # noqa: B905 - ends with `known`
    kind, *rows = chain(waiter, fill, islice(steps, DEPTH), map(_call, (now.clear,)))
    return kind, [(row[1], row[2]) for row in rows if row is not None]


def _waits_for_tasks(waiter: type, code: CodeType) -> bool:
    """Return whether a task waits for other tasks: for one, in `gather`, `wait`, `wait_for` or a group of tasks."""
    if waiter.__name__ in ("Task", "_GatheringFuture"):
        return True
    where = _module(code), code.co_name
    return where in (("asyncio/tasks.py", "_wait"), ("asyncio/tasks.py", "wait_for")) or (
        where[0] == "asyncio/taskgroups.py"
    )


def _is_asyncio(code: CodeType) -> bool:
    """Return whether code is asyncio's, and not that of `to_thread`, which works."""
    module = _module(code)
    return module.startswith("asyncio/") and module != "asyncio/threads.py"


def _module(code: CodeType) -> str:
    """Return the last two parts of the path of a file."""
    return "/".join(code.co_filename.split("/")[-2:])
