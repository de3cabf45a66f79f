"""Process sources in several processes, one source at a time in each.

Only this module knows that a worker can die (out of memory, by a signal), and then loses the source
that it was reading. Such a source is read again in a process of its own, with no other at the same
time; only a source whose reader dies again has failed. A worker is a new interpreter that runs
`serve`: it does not import the program that reads, which may have no main guard.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from stepprof.host.own_python import can_start, own_python

Result = TypeVar("Result")
SMALL = 4 << 20
"""Total bytes below which starting a process takes longer than the work."""
_READY = b"stepprof: the worker is ready\n"


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of a task that raised an exception, or during which its worker died."""

    reason: str
    unread: bool = False
    """Whether the source was not read because of this machine. The source itself may be intact."""


def each_in_worker(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    *,
    sizes: Sequence[int],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Result | Failed]:
    """Call `function(*task)` for each task. Where no worker can start, call it in this process.

    Args:
        function: at module level of stepprof, so that a worker finds it; it and the tasks are pickled.
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
    if count > 1 and can_start() and (workers is not None or sum(sizes) >= SMALL):
        died = _in_workers(function, tasks, order, count, note)
        for number in [number for number in order if died and number not in results]:
            for reason in _in_workers(function, tasks, [number], 1, note):
                note(number, Failed(reason, unread=True))
    for number in order:
        if number not in results:
            note(number, call(function, tasks[number]))
    return [results[number] for number in range(len(tasks))]


def call(function: Callable[..., Result], task: tuple[Any, ...]) -> Result | Failed:
    """Call `function(*task)`; return `Failed` for an error caused by the content of a source."""
    try:
        return function(*task)
    except MemoryError:
        return Failed("memory ran out while it was read; the file itself may be intact", unread=True)
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        # one source must not affect the others, whatever it contains
        return Failed(f"{type(error).__name__}: {error}")


def _in_workers(
    function: Callable[..., Result],
    tasks: Sequence[tuple[Any, ...]],
    order: Sequence[int],
    count: int,
    note: Callable[[int, Result | Failed], None],
) -> list[str]:
    """Run tasks in `count` processes. Return the reason of each process that died during one.

    No result is noted of the tasks during which a process died, nor of those that no process began.

    Raises:
        Exception: the one that the function raised.
    """
    waiting = deque(order)
    ended: SimpleQueue[tuple[int, Any] | _Died | None] = SimpleQueue()
    pool: list[_Worker] = []
    threads: list[threading.Thread] = []
    died: list[str] = []
    try:
        for _ in range(count):
            try:
                pool.append(_Worker())
            except OSError:  # no memory, no process left, too many open files
                break
        for worker in pool:
            arguments = (worker, function, tasks, waiting, ended)
            threads.append(threading.Thread(target=_feed, args=arguments, daemon=True))
            threads[-1].start()
        running = len(threads)
        while running:
            answer = ended.get()
            if isinstance(answer, tuple):
                note(answer[0], _result(answer[1]))
                continue
            running -= 1
            if answer is not None:
                died.append(answer.reason)
    except BaseException:
        for worker in pool:
            worker.kill()
        raise
    finally:
        for thread in threads:
            thread.join()
        for worker in pool:
            worker.end()
    return died


def _feed(
    worker: _Worker,
    function: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    waiting: deque[int],
    ended: SimpleQueue[tuple[int, Any] | _Died | None],
) -> None:
    """Give a worker one task after another until none is left or it dies."""
    died: _Died | None = None
    try:
        while died is None and worker.is_ready():
            number = waiting.popleft()
            answer = worker.ask((function, tasks[number]))
            if isinstance(answer, _Died):
                died = answer
            else:
                ended.put((number, answer))
    except IndexError:  # nothing is waiting
        pass
    finally:
        ended.put(died)


def _result(answer: tuple[bool, Any]) -> Any:
    succeeded, value = answer
    if not succeeded:
        raise value
    return value


@dataclass(frozen=True, slots=True)
class _Died:
    reason: str


class _Worker:
    """A process that runs `serve`.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this Python, with a module of ours
                own_python(f"from {__name__} import serve; serve()"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "STEPPROF": "0"},
            )
        except OSError:
            self._errors.close()
            raise
        assert self._process.stdin is not None  # noqa: S101 - narrows a type; no input decides it
        assert self._process.stdout is not None  # noqa: S101 - narrows a type; no input decides it
        self._tasks, self._answers = self._process.stdin, self._process.stdout
        self._is_ready = False

    def is_ready(self) -> bool:
        """Wait until it has imported stepprof. Return False if it could not."""
        self._is_ready = self._is_ready or any(
            line.endswith(_READY) for line in iter(self._answers.readline, b"")
        )
        return self._is_ready

    def ask(self, task: tuple[Callable[..., Any], tuple[Any, ...]]) -> tuple[bool, Any] | _Died:
        """Have it carry out a task. Return the answer."""
        try:
            pickle.dump(task, self._tasks, pickle.HIGHEST_PROTOCOL)
            self._tasks.flush()
            answer: tuple[bool, Any] = pickle.load(self._answers)  # noqa: S301 - from a process of ours
        except (OSError, EOFError, pickle.UnpicklingError):
            return _Died(self._ending())
        return answer

    def _ending(self) -> str:
        """Return how it ended: the signal, or the end of its stderr."""
        status = self._process.wait()
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            memory = ", probably because memory ran out" if -status == signal.SIGKILL else ""
            return f"the process that read it was killed by {name}{memory}; the file itself may be intact"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        words = f": {lines[-1][:300]}" if lines else ""
        return (
            f"the process that read it ended with exit status {status}{words}; the file itself may be intact"
        )

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def end(self) -> None:
        """Close its input, with which it ends, and wait for that."""
        with contextlib.suppress(OSError):  # it is dead, and part of a task is not written
            self._tasks.close()
        self._process.wait()
        self._answers.close()
        self._errors.close()


def serve() -> None:
    """Carry out the tasks of stdin until it ends; write each answer to stdout. Runs in a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the reader, which ends its workers
    tasks, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    answers.write(_READY)
    answers.flush()
    while True:
        try:
            function, task = pickle.load(tasks)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        answers.write(_answer(function, task))
        answers.flush()


def _answer(function: Callable[..., Any], task: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((True, call(function, task)), pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return pickle.dumps((True, Failed("memory ran out after it was read", unread=True)))
    except Exception as error:  # noqa: BLE001 - raised again by the reader
        return pickle.dumps((False, error))


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))  # the processors that a container or a scheduler allows
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1
