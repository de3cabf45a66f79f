"""Sample the coroutines that wait for an asyncio lock or semaphore, and those that have passed it.

What a coroutine awaits is followed within one call of C code: see `stacks` for why none of its objects is kept.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice, repeat, takewhile
from operator import eq, itemgetter, methodcaller
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from stepprof.host.real_time import perf_counter_ns

MOST_KNOWN = 1_000
"""With more tasks in the process, also those that have ended, none is looked at."""
MOST_TASKS = 64
"""With more tasks nothing is counted: a part of them could lack those that have passed."""
MOST = 5_000
"""Maximum number of stretches of one capture."""
DEPTH = 32
_LOCKS = str(Path(threading.Condition.wait.__code__.co_filename).with_name("asyncio") / "locks.py")

_call: Any = methodcaller("__call__")
_coroutine: Any = methodcaller("get_coro")


class Held(NamedTuple):
    """The tasks in one function at one time."""

    function: CodeType
    """It awaits the lock or the semaphore."""
    waiting: int
    passed: int
    """Tasks in the function that do not wait there."""
    others: int
    """Tasks that are not in the function."""


@dataclass(slots=True)
class HeldStretch:
    """Consecutive samples in which the same number of an event loop's coroutines waited in the same
    function. Times by `perf_counter_ns`.
    """

    thread: int
    """The thread of the event loop."""
    place: tuple[int | None, str | None]
    """The step and role of the window that was open."""
    held: Held
    start_ns: int
    end_ns: int


class TaskSampler:
    """Merges equal samples into stretches."""

    def __init__(self) -> None:
        self.stretches: list[HeldStretch] = []
        self._last: dict[int, HeldStretch] = {}
        """That of the sample before, by thread."""
        self._current: dict[int, HeldStretch] = {}

    def end(self, now_ns: int) -> None:
        """Have the current stretches last until now. The next sample may continue them."""
        self._last, self._current = self._current, {}
        for each in self._last.values():
            each.end_ns = now_ns

    def sample(self, thread: int, place: tuple[int | None, str | None], tasks: Sequence[Any]) -> None:
        """Sample the coroutines of a thread whose event loop waits, and has these tasks."""
        held, now, last = held_tasks(tasks), perf_counter_ns(), self._last.get(thread)
        if held is None:
            return
        if last is not None and (last.place, last.held) == (place, held):
            self._current[thread] = last
        elif len(self.stretches) < MOST:
            self._current[thread] = HeldStretch(thread, place, held, now, now)
            self.stretches.append(self._current[thread])


def pending_tasks(ident: int) -> list[Any]:
    """Return weak references to the tasks of the event loop of a thread that have not ended; []: there are none,
    too many in the process, or it is not known, as on Python 3.14.
    """
    tasks = sys.modules.get("asyncio.tasks")
    known = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None)
    data = getattr(known, "data", ())
    if len(data) > MOST_KNOWN:
        return []
    references: list[Any] = list(data)
    states = map(getattr, map(_call, references), repeat("_state"), repeat(None))
    references = [*compress(references, map(eq, states, repeat("PENDING")))]
    loops = map(getattr, map(_call, references), repeat("_loop"), repeat(None))
    threads = map(getattr, loops, repeat("_thread_id"), repeat(None))
    return [*compress(references, map(eq, threads, repeat(ident)))]


def held_tasks(references: Sequence[Any]) -> Held | None:
    """Return the function with the most tasks that wait for a lock or semaphore; None: there is none, or too many
    tasks.
    """
    if not 1 < len(references) <= MOST_TASKS:
        return None
    awaited = [_awaited(each) for each in references]
    waiting = Counter(function for function in map(_function, awaited) if function is not None)
    if not waiting:
        return None
    [(function, count)] = waiting.most_common(1)
    inside = sum(function in codes for codes in awaited)
    return Held(function, count, inside - count, sum(map(bool, awaited)) - inside)


def _awaited(reference: Any) -> list[CodeType]:
    """Return the code of the coroutine of a task, and of each coroutine that it awaits."""
    now: list[Any] = [None]  # its last item is the coroutine that is looked at; empty at the end
    last = repeat(-1)
    fill = map(now.append, map(_coroutine, filter(None, map(_call, (reference,)))))
    codes = map(getattr, map(now.__getitem__, last), repeat("cr_code"), repeat(None))
    awaited = map(getattr, map(now.__getitem__, last), repeat("cr_await"), repeat(None))
    steps = zip(codes, map(now.__setitem__, last, awaited))  # noqa: B905 - both are endless
    found = islice(takewhile(itemgetter(0), steps), DEPTH)
    rows = list(chain(fill, found, map(_call, (now.clear,))))
    return [row[0] for row in rows if row]


def _function(codes: Sequence[CodeType]) -> CodeType | None:
    """Return the function that awaits a lock or semaphore of asyncio; None: the task waits for something else."""
    if not codes or codes[-1].co_name != "acquire" or not _is_lock(codes[-1]):
        return None
    return next((code for code in reversed(codes) if not _is_lock(code)), None)


def _is_lock(code: CodeType) -> bool:
    return code.co_filename == _LOCKS
