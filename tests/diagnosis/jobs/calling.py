"""A driver without a rank that calls two ranks by pipes, as a trainer calls the actors of Ray."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection

from planted import Job

import stepprof

Work = Callable[[Job, int], None]


class Ranks:
    """Two processes that run `work` in a window of the role `actor` for each step that they get.

    Args:
        job: of which they are ranks.
        work: what a rank does in a step.
    """

    def __init__(self, job: Job, work: Work) -> None:
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe() for _ in range(2)]
        self._pipes = [here for here, _ in pipes]
        self._processes = [
            fork.Process(target=_serve, args=(job, rank, there, work))
            for rank, (_, there) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        self._answers()

    def call(self, step: int) -> None:
        """Let both work on a step, and wait for them."""
        for pipe in self._pipes:
            pipe.send(step)
        self._answers()

    def end(self) -> None:
        """End both."""
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()

    def _answers(self) -> None:
        for pipe in self._pipes:
            pipe.recv()


def _serve(job: Job, rank: int, pipe: Connection, work: Work) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    job.rank = rank
    stepprof.init(**job.init())
    pipe.send("ready")
    while (step := pipe.recv()) is not None:
        with stepprof.profile_step(step, role="actor"):
            work(job, step)
        pipe.send("done")
    stepprof.shutdown()
