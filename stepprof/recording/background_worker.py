"""One daemon thread that does what the training thread should not wait for: drains spans, writes manifests, looks at caps.

Everything slow but the stop itself is done here. The thread is one for all, since each more takes its share of the
interpreter's lock from training. Work comes through a ``SimpleQueue``, whose put is one operation of C: an interrupt (Ctrl-C) inside
an ``Event`` or a ``Queue`` can leave its lock locked, and the training thread would wait for it for ever.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from stepprof.log import logger

__all__ = ["Background", "is_background"]

QUIET_SECONDS = 1.0
"""How often spans are drained while nothing is recorded."""

WATCHFUL_SECONDS = 0.2
"""How often caps are looked at while a capture runs: how late a cap may act."""

Work = Callable[[], object]


def _nothing() -> None:
    """What wakes the thread, and is no work."""


class _Thread(threading.Thread):
    """By which it is known again."""


def is_background() -> bool:
    """Whether the caller runs on such a thread, where nothing holds training up.

    >>> is_background()
    False
    """
    return isinstance(threading.current_thread(), _Thread)


class Background:
    """Runs posted work in order, and a round of chores about once a second (more often while there is something to `watch`).

    Args:
        chores: called at each round; each is tried on its own, and a failure is logged.
    """

    def __init__(self, *chores: Work) -> None:
        self._chores = chores
        self._posted: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._round = threading.Lock()
        self._acting: int | None = None
        """The thread that does what is posted."""
        self._ending = self._ended = False
        self._watchful = False
        self._thread = _Thread(target=self._run, name="stepprof", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def post(self, work: Work) -> None:
        """Have it done soon, on the thread; at once where the thread has ended."""
        self._posted.put(work)
        if self._ended and self._acting != threading.get_ident():
            with self._round:
                self._do_posted()

    def watch(self, on: bool) -> None:
        """Have rounds often, as long as caps have to be looked at."""
        before, self._watchful = self._watchful, on
        if (
            on and not before
        ):  # once it is known: the thread asks how long to wait right after the round it is woken for
            self.wake()

    def wake(self) -> None:
        """Have the next round now."""
        self._posted.put(_nothing)

    def _run(self) -> None:
        while not self._ending:
            try:
                first = self._posted.get(timeout=WATCHFUL_SECONDS if self._watchful else QUIET_SECONDS)
            except queue.Empty:
                first = _nothing
            self.round(first=first)

    def round(self, timeout: float = -1, *, first: Work = _nothing) -> bool:
        """Do all that is posted and the chores, on the calling thread; False where another round did not end in time."""
        if not self._round.acquire(timeout=timeout):
            return False
        try:
            self._try(first)
            self._do_posted()
            for chore in self._chores:
                self._try(chore)
        finally:
            self._round.release()
        return True

    def _do_posted(self) -> None:
        """Do what is posted, and what that posts; by the thread that holds the round."""
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
        except Exception as error:  # noqa: BLE001 - one chore that fails must not end the others
            logger.warning(
                "background.failed", work=getattr(work, "__qualname__", repr(work)), reason=repr(error)
            )

    def stop(self, timeout: float) -> None:
        """End the thread and do what is left on the calling one, within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._ending = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        self._ended = True
        self.round(max(deadline - time.monotonic(), 0.1))
