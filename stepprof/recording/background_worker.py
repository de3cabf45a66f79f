"""Do slow work on one daemon thread: drain spans, write manifests, check caps.

All slow work except the stop itself is done here. There is one thread, because each further one
takes its share of the interpreter lock from training. Work comes through a ``SimpleQueue``, whose
put is one C operation: an interrupt (Ctrl-C) inside an ``Event`` or a ``Queue`` can leave its lock
locked, and the training thread would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.log import logger

QUIET_SECONDS = 1.0
"""Seconds between two drains of spans while nothing is recorded."""

WATCHFUL_SECONDS = 0.2
"""Seconds between two checks of the caps during a capture: a cap may be this late."""

Work = Callable[[], object]


class _Thread(threading.Thread):
    """A thread that `is_background` recognises."""


def is_background() -> bool:
    """Return whether the caller runs on the background thread, where nothing delays training.

    >>> is_background()
    False
    """
    return isinstance(threading.current_thread(), _Thread)


class Background:
    """Runs posted work in order, and a round of chores about once a second, more often during a
    capture.

    Args:
        chores: called in each round. Each is tried on its own, and a failure is logged.
    """

    def __init__(self, *chores: Work) -> None:
        self._chores = chores
        self._posted: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the thread. Work is taken only within a round, so that none is lost while another thread runs the round."""
        self._round = threading.Lock()
        self._acting: int | None = None
        """The thread that runs posted work."""
        self._ending = self._ended = False
        self._watchful = False
        self._thread = _Thread(target=self._run, name="stepprof", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, work: Work) -> None:
        """Run the work soon on the thread, or at once if the thread has ended."""
        self._posted.put(work)
        self.wake()
        if self._ended and self._acting != threading.get_ident():
            with self._round:
                self._do_posted()

    def watch(self, on: bool) -> None:
        """Run rounds more often while caps must be checked."""
        before, self._watchful = self._watchful, on
        if on and not before:  # after the flag: the thread reads it right after its round
            self.wake()

    def wake(self) -> None:
        """Start the next round now."""
        self._woken.put(None)

    def _run(self) -> None:
        while not self._ending:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=WATCHFUL_SECONDS if self._watchful else QUIET_SECONDS)
            while not self._woken.empty():
                self._woken.get_nowait()
            self.round()

    def round(self, timeout: float = -1) -> bool:
        """Run posted work and chores on this thread. Return False if another round did not end in time."""
        if not self._round.acquire(timeout=timeout):
            return False
        try:
            self._do_posted()
            for chore in self._chores:
                self._try(chore)
        finally:
            self._round.release()
        return True

    def _do_posted(self) -> None:
        """Run posted work, and the work that it posts, on the thread that runs the round."""
        self._acting = threading.get_ident()
        try:
            while not self._posted.empty():
                self._try(self._posted.get_nowait())
        finally:
            self._acting = None

    @staticmethod
    def _try(work: Work) -> None:
        try:
            work()
        except ours(Exception) as error:  # one chore that fails must not end the others
            logger.warning(
                "background.failed", work=getattr(work, "__qualname__", repr(work)), reason=repr(error)
            )

    def stop(self, timeout: float) -> None:
        """End the thread and run the remaining work on the calling one, within ``timeout`` seconds."""
        deadline = real_time.monotonic() + timeout
        self._ending = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._ended = True
        self.round(max(deadline - real_time.monotonic(), 0.1))
