"""Process sources in several processes, one source at a time in each.

Only this module knows that a worker can die (out of memory, by a signal) and takes the tasks of its
pool with it. Lost tasks are repeated, each in a process of its own; only a task that dies again has
failed. Workers are spawned, never forked: that works everywhere, and inherits nothing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeVar

from stepprof.analysis.timeline.malloc_tuning import keep_freed_memory

Result = TypeVar("Result")
SMALL = 4 << 20
"""Total bytes below which starting a process takes longer than the work."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of a task that raised an exception, or during which its worker died."""

    reason: str


def each_in_worker(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    *,
    sizes: Sequence[int],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result | Failed]:
    """Call `function(*task)` for each task.

    Args:
        function: at module level, so that a worker finds it; it and the tasks are pickled.
        tasks: the arguments of each call.
        sizes: bytes of each; the largest start first.
        workers: the largest number of processes; 1: only this one; None: one per core, and only this one for small inputs.
        progress: called with (tasks done, all tasks) after each.

    Returns:
        The result of each call, in order.
    """
    results: dict[int, Result | Failed] = {}

    def note(number: int, result: Result | Failed) -> None:
        results[number] = result
        if progress:
            progress(len(results), len(tasks))

    count = min(len(tasks), workers or _cores())
    order = sorted(range(len(tasks)), key=lambda number: -sizes[number])
    if count > 1 and (workers is not None or sum(sizes) >= SMALL):
        _in_pool(function, tasks, order, count, note)
        for number in order:
            if number not in results:
                _in_pool(function, tasks, [number], 1, note)
                if number not in results:
                    note(number, Failed("the process that read it died, probably out of memory"))
    for number in order:
        if number not in results:
            note(number, call(function, tasks[number]))
    return [results[number] for number in range(len(tasks))]


def _in_pool(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    order: Sequence[int],
    count: int,
    note: Callable[[int, Result | Failed], None],
) -> None:
    """Run some tasks. If a worker dies, all tasks that have not ended are left."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, initializer=keep_freed_memory) as pool:
        futures: dict[Future[Result | Failed], int] = {}
        try:
            for number in order:
                futures[pool.submit(call, function, tasks[number])] = number
            for future in as_completed(futures):
                note(futures[future], future.result())
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(cancel_futures=True)


def call(function: Callable[..., Result], task: tuple[Any, ...]) -> Result | Failed:
    """Call `function(*task)`; return `Failed` for an error caused by the content of a source."""
    try:
        return function(*task)
    except (MemoryError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        # one source must not affect the others, whatever it contains
        return Failed(f"{type(error).__name__}: {error}")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))  # the processors that a container or a scheduler allows
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1
