"""Sample the stacks of a few threads at a low rate, and merge equal samples into stretches.

The sampled threads are those with regions, and a few other busy ones, which the first may wait for. One daemon thread samples while a capture runs.
It waits for no lock. A frame of another thread is held within a single call of C code only: the interpreter's lock is not released meanwhile, so the
sampler never releases the last reference to an object of the job.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain, repeat
from operator import attrgetter, methodcaller
from types import CodeType

from stepprof.host.frames import frames_once
from stepprof.host.kernel_times import ThreadTimes
from stepprof.host.real_time import perf_counter_ns
from stepprof.interrupts import ignored
from stepprof.recording.evidence.awaited_calls import AwaitedCalls
from stepprof.recording.evidence.busy_threads import busy_threads
from stepprof.recording.evidence.garbage import GarbageWatch
from stepprof.recording.evidence.sampler_thread import SamplerThread
from stepprof.recording.evidence.waiting_tasks import TaskSampler, pending_tasks
from stepprof.run.evidence import SAMPLE_NS

LONGEST_NS = 600_000_000_000
"""Maximum seconds of sampling in one capture: its window may never be closed."""

DEPTH = 128
"""Maximum number of frames of a stack, the innermost ones. The outer ones name the task of a thread, and what called torch's compiler."""

MOST = 5_000
"""Maximum number of stretches of one capture."""

MOST_THREADS = 16
"""Maximum number of threads with regions."""
MOST_BUSY = 8
"""Maximum number of other threads at a time."""
MOST_TOTALS = 256
"""Once a capture has this many threads, no further busy thread without regions is added."""

OWN_CODE = {GarbageWatch.collected.__code__}
"""Code of stepprof that the interpreter calls in the middle of the job's code; left out of stacks."""

Stack = tuple[tuple[CodeType, int | None, int], ...]
"""Code, line and instruction (`f_lasti`) of each frame, the innermost first."""
Place = tuple["int | None", "str | None"]


@dataclass(slots=True)
class Stretch:
    """Consecutive equal samples of one thread. Times by `perf_counter_ns`."""

    thread: int
    step: int | None
    role: str | None
    stack: Stack
    start_ns: int
    end_ns: int
    cpu_ns: float
    queue_ns: float
    """Run-queue delay."""
    counted: bool
    """The kernel counts both."""
    samples: int = 1


@dataclass(slots=True)
class ThreadTotal:
    """What one thread used while it was sampled. Times by `perf_counter_ns`."""

    thread: int
    times: ThreadTimes
    first: tuple[int, int] | None
    """CPU time and run-queue delay at the start; None: the kernel does not count them."""
    last: tuple[int, int] | None
    start_ns: int
    end_ns: int
    samples: int = 0
    dropped: int = 0
    current: Stretch | None = None


_frame = attrgetter("f_code", "f_lineno", "f_lasti")


def stack_of(ident: int) -> Stack:
    """Return the stack of a thread; (): the thread has ended.

    >>> stack_of(threading.get_ident())[0][0].co_name
    'stack_of'
    """
    found: deque[tuple[CodeType, int, int]] = deque()
    with ignored(AttributeError):  # neither None nor "f_back" has f_code: no further frame
        # getattr(frame, "f_back") again and again, in C: see the module's docstring
        found.extend(
            map(
                _frame,
                accumulate(
                    chain(
                        filter(None, map(methodcaller("get", ident), frames_once())),
                        repeat("f_back", DEPTH - 1),
                    ),
                    getattr,
                ),
            )
        )
    while found and found[0][0] in OWN_CODE:
        found.popleft()
    return tuple(found)


def _is_event_loop(stack: Stack) -> bool:
    """Return whether a thread is in an event loop of asyncio whose coroutines all wait."""
    return [code.co_name for code, *_ in stack[:2]] == ["select", "_run_once"]


class StackSampler:
    """Samples threads from `start` to `stop`.

    Args:
        threads: the threads to sample: the native id of each by its identifier. More may be added.
        place: returns the step and role of the window that is open.
        thread: the thread that samples.
    """

    def __init__(self, threads: dict[int, int], place: Callable[[], Place], thread: SamplerThread) -> None:
        self.stretches: list[Stretch] = []
        self.tasks = TaskSampler()
        self.awaited = AwaitedCalls()
        self.totals: dict[int, ThreadTotal] = {}
        self._threads = threads
        self._busy: set[int] = set()
        """The native ids of other threads that were sampled last."""
        self._left: set[int] = set()
        """Of those that were sampled before, and not now."""
        self._place = place
        self._thread = thread
        self._turn = threading.Lock()
        self._opener: ThreadTotal | None = None
        self._until = 0
        self._due = 0
        self._end_ns = 0
        self._over = False

    def start(self) -> None:
        """Start to sample. Raises RuntimeError if the system allows no further thread."""
        self._due = perf_counter_ns()
        self._until = self._due + LONGEST_NS
        for thread in self._threads.values():  # here: the sampler may have to wait for the interpreter's lock
            self._opener = self._begin(thread)
        try:
            self._thread.begin(self._take_turn)
        except BaseException:
            self.forget()
            raise

    def stop(self, end_ns: int) -> None:
        """Stop sampling, and drop everything after this time."""
        self._end_ns = end_ns
        self._thread.end(self._take_turn)
        if self._opener is not None:  # it goes on to the export, which is not counted
            self._opener.times.freeze()

    def forget(self) -> None:
        """Close the files: at the end, and in a forked child, which inherits them."""
        for total in list(self.totals.values()):
            total.times.close()

    def finish(self, timeout: float) -> bool:
        """Count up to the end of the window. Return False if a sample does not end within this many seconds."""
        if not self._turn.acquire(timeout=timeout):
            return False
        self._conclude(self._end_ns)
        return True

    def _take_turn(self) -> bool:
        """Sample, unless the window is over. Return whether to sample again."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._end_ns:
                return False
            self._sample()
            self._due = perf_counter_ns() + SAMPLE_NS
            if self._due > self._until:
                self._conclude(perf_counter_ns())
            return not self._over
        finally:
            self._turn.release()

    def _conclude(self, end_ns: int) -> None:
        """Count and keep everything up to this time, once."""
        if self._over:
            return
        self._over = True
        self.tasks.end(min(perf_counter_ns(), end_ns))
        self.awaited.end(min(perf_counter_ns(), end_ns))
        for total in self.totals.values():
            if not total.times.ended:
                self._count(total, end_ns, end_ns)
                self._keep(total, end_ns)
        self.forget()

    def _sample(self) -> None:
        """Sample all threads. A sample counts from when it was due: if a call held the
        interpreter's lock since then, the thread was in that call.
        """
        place = self._place()
        self.tasks.end(perf_counter_ns())
        self.awaited.end_lost(perf_counter_ns())
        mine = {
            ident: thread
            for ident, thread in list(self._threads.items())[:MOST_THREADS]
            if thread not in self.totals or not self.totals[thread].times.ended
        }
        busy = busy_threads(mine, MOST_BUSY)
        for thread in self._busy - {*busy.values()}:
            self._leave(self.totals[thread])
        self._busy.clear()
        for ident, thread in (*mine.items(), *busy.items()):
            if thread not in self.totals and ident in busy and len(self.totals) >= MOST_TOTALS:
                continue
            total = self.totals.get(thread) or self._begin(thread)
            if thread in self._left:
                self._return(total)
            if total.times.ended:
                continue
            if ident in busy:
                self._busy.add(thread)
            now = perf_counter_ns()
            found = stack_of(ident)
            stretch = total.current
            if stretch is not None and found == stretch.stack and place == (stretch.step, stretch.role):
                self._count(total, now, now)
                stretch.samples += 1
            else:
                begin = min(now, max(self._due, total.end_ns))
                rest = self._count(total, begin, now)
                self._keep(total, begin)
                if found and rest is not None:
                    total.current = Stretch(
                        thread, *place, found, begin, begin, *rest, counted=total.last is not None
                    )
            total.samples += 1
            if _is_event_loop(found):
                tasks = pending_tasks(ident)
                self.tasks.sample(thread, place, tasks)
                self.awaited.sample(thread, place, now, tasks)

    def _leave(self, total: ThreadTotal) -> None:
        """End the stretch of a thread that is no longer busy, or has regions now."""
        now = perf_counter_ns()
        begin = min(now, max(self._due, total.end_ns))
        self._count(total, begin, now)
        self._keep(total, begin)
        total.times.close()  # a job may have hundreds of threads, and few files
        self._left.add(total.thread)

    def _return(self, total: ThreadTotal) -> None:
        """Open the file of a thread that is sampled again."""
        self._left.remove(total.thread)
        total.times = ThreadTimes(total.thread)
        total.last = total.times.read()

    def _begin(self, thread: int) -> ThreadTotal:
        times, now = ThreadTimes(thread), perf_counter_ns()
        first = times.read()
        total = self.totals[thread] = ThreadTotal(thread, times, first, first, now, now)
        return total

    def _count(self, total: ThreadTotal, begin: int, now: int) -> tuple[float, float] | None:
        """Add what the thread used since then, up to `begin`. Return the rest; None: it has ended."""
        before, since = total.last, max(now - total.end_ns, 1)
        counts = total.times.read()
        total.end_ns = now
        if total.times.ended:
            self._keep(total, begin)
            total.times.close()
            return None
        if before is None or counts is None:
            return 0.0, 0.0
        total.last = counts
        share = (begin - now + since) / since
        used, waited = counts[0] - before[0], counts[1] - before[1]
        if total.current is not None:
            total.current.cpu_ns += used * share
            total.current.queue_ns += waited * share
        return used * (1 - share), waited * (1 - share)

    def _keep(self, total: ThreadTotal, end_ns: int) -> None:
        """End the current stretch of a thread."""
        stretch, total.current = total.current, None
        if stretch is None or (self._end_ns and stretch.start_ns >= self._end_ns):
            return
        stretch.end_ns = min(end_ns, self._end_ns or end_ns)
        if len(self.stretches) < MOST:
            self.stretches.append(stretch)
        else:
            total.dropped += 1
