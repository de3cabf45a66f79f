"""Collect the evidence of a capture, and write it into the span file when the capture has ended.

The lines have the kinds `gc` (a garbage collection), `stack` (a stretch of equal stacks), `tasks`
(coroutines that wait for a lock or semaphore), `awaits` (calls that a coroutine awaits one after the other) and `usage` (a thread, or the process). `stepprof.run.evidence` reads them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path, PurePath
from types import CodeType
from typing import TYPE_CHECKING

from stepprof.host.kernel_times import storage_bytes
from stepprof.host.real_time import thread_time_ns
from stepprof.instrument.scope import Scope, newest
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.recording.evidence.awaited_calls import Awaited
from stepprof.recording.evidence.call_targets import CallTargets
from stepprof.recording.evidence.code_origin import is_compiling, is_stepprof, library_calls, own_frames
from stepprof.recording.evidence.garbage import GarbageWatch
from stepprof.recording.evidence.sampler_thread import SamplerThread
from stepprof.recording.evidence.stacks import StackSampler, Stretch
from stepprof.recording.evidence.thread_tasks import task_of
from stepprof.recording.evidence.waiting_tasks import HeldStretch

if TYPE_CHECKING:
    from stepprof.instrument.scope import Span
    from stepprof.instrument.span_recorder import Recorder

LONGEST_TEXT = 200
"""Maximum characters of the name of a function or a file."""

MOST_CALLS = 4
"""Maximum number of calls of libraries by the job's own frames that are written for a stack, the innermost ones."""

MOST_FRAMES = 16
"""Maximum number of frames of a stack that are written, the innermost ones."""

FINISH_SECONDS = 1.0
"""How long the background thread waits for the end of the sampler."""

Place = tuple["int | None", "str | None"]
_LIBRARY = str(Path(threading.__file__).parent)


class Evidence:
    """The evidence of one capture after the other.

    Args:
        recorder: knows the threads.
        post: runs work on the background thread.
        write: writes spans to the span file; called there.
    """

    def __init__(
        self,
        recorder: Recorder,
        post: Callable[[Callable[[], object]], None],
        write: Callable[[list[Span]], object],
    ) -> None:
        self._recorder = recorder
        self._post = post
        self._write = write
        self._running: _Running | None = None
        self._sampling = SamplerThread()

    def begin(self, start_ns: int, step: int, role: str | None) -> None:
        """Begin with a capture, on the thread that opened it. Never raise."""
        running = _Running(self._recorder, self._sampling, start_ns, (step, role))
        try:
            running.start()
            if _newest:  # the evidence of a session that was left with its window open
                _newest.pop().stop(start_ns)
            _newest.append(running)
            self._running = running
            self.note_thread()
        except ours(Exception) as error:  # the capture is worth more than this
            self._running = None
            running.stop(start_ns)
            logger.warning("evidence.failed", reason=repr(error))

    def note_thread(self) -> tuple[int, int] | None:
        """Have this thread sampled. Return its identifier and its CPU time; None: nothing is collected."""
        running = self._running
        if running is None:
            return None
        ident = threading.get_ident()
        running.threads[ident] = self._recorder.thread.id
        return ident, thread_time_ns()

    def end(self, start_ns: int | None, end_ns: int) -> None:
        """End with the capture. Never raise and never wait.

        Args:
            start_ns: start of the window by `perf_counter_ns`: evidence from before is left out. None: unknown.
            end_ns: end of the window.
        """
        running, self._running = self._running, None
        if running is not None:
            if running in _newest:
                _newest.remove(running)
            running.start_ns = start_ns or running.start_ns
            running.stop(end_ns)
            self._post(partial(self._finish, running))

    def close(self) -> None:
        """End the sampler's thread, at the end of the session."""
        self._sampling.close(FINISH_SECONDS)

    def forget(self) -> None:
        """Drop everything in a forked child: it belongs to the parent."""
        running, self._running = self._running, None
        _newest.clear()
        if running is not None:
            running.forget()

    def _finish(self, running: _Running) -> None:
        if running.finish():
            self._write(running.spans())
        else:
            logger.warning("evidence.failed", reason=f"the sampler did not end within {FINISH_SECONDS:g} s")


_newest: list[_Running] = []
"""The evidence that is collected in this process: one at most, like its capture."""


class _Running:
    """The evidence of one capture."""

    def __init__(self, recorder: Recorder, sampling: SamplerThread, start_ns: int, opener: Place) -> None:
        self.threads: dict[int, int] = {threading.get_ident(): recorder.thread.id}
        self._opener = opener
        self.start_ns = self._end_ns = start_ns
        self._thread = recorder.thread.id
        self._garbage = GarbageWatch(lambda: recorder.thread.id, self._place)
        self._sampler = StackSampler(self.threads, self._place, sampling) if _has_one_lock() else None
        self._stored: tuple[int, int] | None = None
        self._stored_before: tuple[int, int] | None = None

    def _place(self) -> Place:
        window = newest.window
        return self._opener if window is None else (window.number, window.role)

    def start(self) -> None:
        """Begin. Raises RuntimeError if the system allows no further thread."""
        self._stored_before = storage_bytes()
        if self._sampler is not None:
            self._sampler.start()
        self._garbage.start()

    def stop(self, end_ns: int) -> None:
        """End."""
        self._garbage.stop()
        self._end_ns = end_ns
        if self._sampler is not None:
            self._sampler.stop(end_ns)
        self._stored = storage_bytes()

    def forget(self) -> None:
        """Free the inherited data in a forked child, which has no sampler."""
        self._garbage.stop()
        if self._sampler is not None:
            self._sampler.forget()

    def finish(self) -> bool:
        """Wait for the sampler, and return whether it has ended."""
        return self._sampler is None or self._sampler.finish(FINISH_SECONDS)

    def spans(self) -> list[Span]:
        """Return the lines to write."""
        found = [
            _span(("gc", "gc"), each.thread, (max(each.start_ns, self.start_ns), each.end_ns), (each.step, each.role), {
                "generation": each.generation,
                "count": each.count,
                "busy": each.busy_ns,
                "collected": each.collected,
            })
            for each in self._garbage.found if each.end_ns > self.start_ns
        ]  # fmt: skip
        name = CallTargets()
        for stretch in [] if self._sampler is None else self._sampler.stretches:
            if _begin_at(stretch, self.start_ns):
                found.append(_stack_span(stretch, name))
        for each in [] if self._sampler is None else self._sampler.tasks.stretches:
            times = max(each.start_ns, self.start_ns), min(each.end_ns, self._end_ns)
            if times[0] < times[1]:
                found.append(_held_span(each, times))
        for calls in [] if self._sampler is None else self._sampler.awaited.found():
            times = max(calls.start_ns, self.start_ns), min(calls.end_ns, self._end_ns)
            if times[0] < times[1] and own_frames(tuple((code, 0, 0) for code in reversed(calls.codes)))[0]:
                found.append(_awaited_span(calls, times))
        for total in () if self._sampler is None else self._sampler.totals.values():
            times = max(total.start_ns, self.start_ns), min(total.end_ns, self._end_ns)
            if times[0] > times[1]:  # a thread that appeared after the window, or ended before it
                continue
            used = _used(total.first, total.last, ("cpu", "run_queue"))
            counts = {"samples": total.samples, "dropped": total.dropped}
            found.append(_span(("thread", "usage"), total.thread, times, self._opener, {**counts, **used}))
        stored = _used(self._stored_before, self._stored, ("read_bytes", "write_bytes"))
        attributes = {"collections_dropped": self._garbage.dropped, **stored}
        times = self.start_ns, self._end_ns
        found.append(_span(("process", "usage"), self._thread, times, self._opener, attributes))
        return found


def _used(
    first: tuple[int, int] | None, last: tuple[int, int] | None, names: Sequence[str]
) -> dict[str, int]:
    """Return by how much two counters have grown, if the system provides them."""
    if first is None or last is None:
        return {}
    return {name: after - before for name, before, after in zip(names, first, last, strict=True)}


def _begin_at(stretch: Stretch, start_ns: int) -> bool:
    """Cut off the part of a stretch before this time; return whether anything is left."""
    early = start_ns - stretch.start_ns
    if early > 0:
        share = max(0.0, 1 - early / max(stretch.end_ns - stretch.start_ns, 1))
        stretch.start_ns = start_ns
        stretch.cpu_ns *= share
        stretch.queue_ns *= share
    return stretch.end_ns > start_ns


def _stack_span(stretch: Stretch, name_of: Callable[[CodeType, int], str | None]) -> Span:
    stack, own = stretch.stack, own_frames(stretch.stack)
    frames = [*map(_frame, stack[:MOST_FRAMES], own)]
    code, _, instruction = stack[0]
    call = _known(name_of(code, instruction))
    attributes: dict[str, object] = {"frames": frames, "call": call, "samples": stretch.samples}
    if _is_recorder(stretch):
        attributes["recorder"] = True
    if is_compiling(stretch.stack):
        attributes["compiles"] = True
    if True in own[1:] and not own[0]:
        attributes["caller"] = _frame(stack[own.index(True)], own=True)
    calls = [*islice(library_calls(stack, own, name_of), MOST_CALLS)]
    if calls:
        attributes["calls"] = [(_known(name), _short(file)) for name, file in calls]
    task = task_of([code for code, *_ in stack])
    if task is not None:
        attributes |= {"task": _short(task.name), "pool": task.pool}
    if stretch.counted:
        attributes |= {"cpu": round(stretch.cpu_ns), "run_queue": round(stretch.queue_ns)}
    times = stretch.start_ns, max(stretch.start_ns, stretch.end_ns)
    place = stretch.step, stretch.role
    return _span((call or frames[0][0], "stack"), stretch.thread, times, place, attributes)


def _frame(frame: tuple[CodeType, int | None, int], own: bool) -> tuple[str, str, int, bool]:
    code, line, _ = frame  # some instructions have no line, such as those that begin an `except`
    return _name(code), _short(PurePath(code.co_filename).name), line or code.co_firstlineno, own


def _name(code: CodeType) -> str:
    return _short(getattr(code, "co_qualname", code.co_name))


def _known(name: str | None) -> str | None:
    return None if name is None else _short(name)


def _held_span(stretch: HeldStretch, times: tuple[int, int]) -> Span:
    held = stretch.held
    attributes = {"waiting": held.waiting, "passed": held.passed, "others": held.others}
    return _span((_name(held.function), "tasks"), stretch.thread, times, stretch.place, attributes)


def _awaited_span(calls: Awaited, times: tuple[int, int]) -> Span:
    attributes = {
        "caller": _name(calls.codes[-1]),
        "calls": calls.calls,
        "busy": calls.busy_ns,
        "longest": calls.longest_ns,
    }
    return _span((_name(calls.function), "awaits"), calls.thread, times, calls.place, attributes)


def _is_recorder(stretch: Stretch) -> bool:
    """Return whether the thread was in stepprof's own code, or in standard-library code that it called."""
    for code, *_ in stretch.stack:
        file = code.co_filename
        if is_stepprof(file):
            return True
        if not file.startswith(_LIBRARY) or "site-packages" in file:
            return False
    return False


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def _span(
    what: tuple[str, str],
    thread: int,
    times: tuple[int, int],
    place: Place,
    attributes: Mapping[str, object],
) -> Span:
    """Return a line: its name and kind, its times by `perf_counter_ns`, its step and role."""
    where = Scope()
    where.number, where.role = place
    where._bound = None
    return *what, *times, thread, None, where, attributes, False


def _has_one_lock() -> bool:
    """Return whether one lock guards the interpreter: else frames of other threads are not safe to read."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
