"""Look at runs once a second until all are over."""

from __future__ import annotations

import contextlib
import math
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from stepprof.config.config import Config
from stepprof.follow.follower import RESTART_SECONDS, Follower
from stepprof.host import real_time
from stepprof.log import logger

LOOK_SECONDS = 1.0
REST = 5
"""The pause between two looks is at least this many times as long as a look."""

SIGNAL_SECONDS = 0.1
"""How late a signal may be noticed."""


def follow(
    config: Config, runs: Callable[[], Iterable[Path]], job_runs: Callable[[], bool] | None = None
) -> bool:
    """Follow runs until all are over.

    A run is over when no process of it is alive. If some have not ended well, they may be started again: as
    long as the job runs, or for RESTART_SECONDS without a job to ask. After a SIGTERM that is not awaited.
    A second SIGTERM, or Ctrl-C, ends it at once.

    Args:
        config: the configuration.
        runs: returns the runs, of which there may be more at each call while the job runs.
        job_runs: returns whether the job runs; None: there is none to ask.

    Returns:
        Whether everything was done.
    """
    followers: dict[Path, Follower] = {}
    waits = False
    with _signals() as signals:
        try:
            while True:
                began, asked = real_time.monotonic(), len(signals)
                running = job_runs is not None and job_runs()
                for run in runs():
                    if run not in followers:
                        followers[run] = Follower(run, config)
                again = math.inf if running else RESTART_SECONDS if job_runs is None and not asked else 0.0
                over = [each.look(again) for each in followers.values()]
                if all(over) and not running:
                    if not followers:
                        logger.warning("follow.no_run")
                    return not any(each.has_failed for each in followers.values())
                if not again and not waits:
                    waits = True
                    processes = [name for each in followers.values() for name in each.alive]
                    exporting = [step for each in followers.values() for step in each.exporting]
                    logger.notice(
                        "follow.waiting",
                        processes=processes[:5],
                        count=len(processes),
                        exporting=exporting[:5],
                    )
                pause = max(LOOK_SECONDS, REST * (real_time.monotonic() - began))
                until = real_time.monotonic() + pause
                while real_time.monotonic() < until and asked == len(signals):
                    if running and job_runs is not None and not job_runs():
                        break
                    time.sleep(SIGNAL_SECONDS)
        finally:
            for each in followers.values():
                each.close()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Yield a list for the first SIGTERM; the next one acts as Ctrl-C."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, handle)}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may ignore it
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_open(pipe: int = 0) -> bool:
    """Return whether `stepprof run` still holds the other end of a pipe, to which it writes nothing."""
    return not select.select([pipe], [], [], 0)[0]
