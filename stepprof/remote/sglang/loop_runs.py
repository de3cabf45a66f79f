"""Run the idle event loop of an engine, while the caller waits for stepprof.

The loop of a synchronous ``Engine`` runs only inside its own calls. Between two of them a thread of
stepprof runs it, so that a call of stepprof is answered. That run must end before the caller
continues, because the caller's next call to the engine runs the same loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import weakref
from typing import Any

from stepprof.host import real_time
from stepprof.interrupts import ours
from stepprof.remote.loop import in_thread

SLICE_SECONDS = 0.5
"""How long a loop is run at a time; between these runs the engine's life is checked."""

RELEASE_LOOK_SECONDS = 0.002
"""How often `LoopRuns.release` checks whether the current runs have ended."""


class LoopRuns:
    """The runs of one engine's loop, and until when they are allowed."""

    def __init__(self) -> None:
        self._until = 0.0
        """Until when the loop may be run, by `time.monotonic`; in the past: it may not."""
        self._open: set[concurrent.futures.Future[None]] = set()
        """One future for each current run: setting its result ends the run."""

    @property
    def seconds_left(self) -> float:
        """Return for how many more seconds the loop may be run; 0 or less: it may not."""
        return self._until - real_time.monotonic()

    def allow(self, seconds: float) -> None:
        """Allow runs for this many seconds from now on; 0: none."""
        self._until = real_time.monotonic() + seconds

    async def run(self, loop: asyncio.AbstractEventLoop, answer: concurrent.futures.Future[Any]) -> None:
        """Run this idle loop on a thread until the answer is there, runs are no longer allowed, or `SLICE_SECONDS` have passed."""
        ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._open.add(ended)
        try:
            await in_thread(_run_until, loop, (answer, ended), min(self.seconds_left, SLICE_SECONDS))
        finally:
            self._open.discard(ended)

    async def release(self) -> None:
        """Allow no more runs, and wait until the current ones have ended."""
        self._until = 0.0
        while self._open:
            for run in self._open:
                if not run.done():
                    run.set_result(None)
            await asyncio.sleep(RELEASE_LOOK_SECONDS)


_runs: weakref.WeakValueDictionary[int, LoopRuns] = weakref.WeakValueDictionary()
"""By the `id` of the engine's tokenizer manager, which each link keeps alive as well."""


def runs_of(manager: object) -> LoopRuns:
    """Return the runs of the engine with this tokenizer manager. All links to the engine share them,
    because a driver also ends the capture that another driver left.
    """
    return _runs.setdefault(id(manager), LoopRuns())


def _run_until(
    loop: asyncio.AbstractEventLoop, ends: tuple[concurrent.futures.Future[Any], ...], seconds: float
) -> None:
    """Run an idle loop on this thread until one of these futures is done.

    If the loop's owner runs it first, nothing harmful is left on it: only a timer that sets a
    future which no other code awaits.
    """
    ended: asyncio.Future[None] = loop.create_future()

    def end(_: object = None) -> None:
        loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    for each in ends:
        each.add_done_callback(end)
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        loop.run_until_complete(ended)
    except ours(RuntimeError):  # its owner runs it now, including our call
        return
    finally:
        timer.cancel()
