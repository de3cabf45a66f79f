"""Run the samplers of a session's recorded windows, one after the other, on one daemon thread.

The first window starts the thread, and `close` ends it. Between two windows it waits and never
wakes. A thread for each window would delay the window: the two compete for the interpreter's lock
when the thread starts and when it ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from time import sleep

from stepprof.host.real_time import perf_counter_ns
from stepprof.interrupts import ours
from stepprof.log import logger
from stepprof.run.evidence import SAMPLE_NS


class SamplerThread:
    """Calls one function 40 times a second."""

    def __init__(self) -> None:
        self._sample: Callable[[], bool] | None = None
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._due_ns = 0
        self._closing = False

    def begin(self, sample: Callable[[], bool]) -> None:
        """Call this function from now on, until it returns False. Raises RuntimeError if the system
        allows no further thread.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="stepprof-stacks", daemon=True)
            thread.start()
            self._thread = thread
        self._due_ns = perf_counter_ns() + SAMPLE_NS
        self._sample = sample
        self._woken.put(None)

    def end(self, sample: Callable[[], bool]) -> None:
        """Stop calling this function. The thread is not woken for this: it waits after its next turn."""
        if self._sample == sample:
            self._sample = None

    def close(self, timeout: float) -> None:
        """End the thread, if there is one. Wait at most this many seconds for it."""
        self._closing = True
        self._woken.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._woken.get()
            # if a call held the interpreter's lock since then: not even sleep(0), which releases it
            if (early_ns := self._due_ns - perf_counter_ns()) > 0:
                sleep(early_ns / 1e9)
            while not self._closing and self._sampled():
                sleep(SAMPLE_NS / 1e9)
            if self._closing:
                return

    def _sampled(self) -> bool:
        try:
            sample = self._sample
            return sample is not None and sample()
        except ours(Exception) as error:  # the next window has a sampler of its own
            logger.warning("evidence.failed", reason=repr(error))
            return False
