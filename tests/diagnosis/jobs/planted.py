"""What every job of this folder shares: its arguments, its clock, its ranks, and the truth that it writes.

A job times its own fault with `perf_counter`. It writes what it planted, and how long that took, as
`truth.json` beside the run. With `--fixed` it runs without the fault.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Job:
    """One process of a job."""

    def __init__(self, *, recorded: int = 2, steps: int = 2) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--fixed", action="store_true")
        arguments = parser.parse_args()
        self.out: Path = arguments.out
        self.faulty = not arguments.fixed
        self.recorded = recorded
        self.steps = range(1, steps + 1)
        self.rank = 0
        self._step = 0
        self._figures = {"planted": 0.0, "step_seconds": 0.0, "noise": 0.0, "began": 0.0}

    def init(self, **config: Any) -> dict[str, Any]:
        """Return the arguments of `stepprof.init`."""
        first = {
            "output_dir": str(self.out),
            "steps": str(self.recorded),
            "backend": "null",
            "strict": True,
        }
        return {"config": {**first, "ranks": "all", **config}, "run_id": "job"}

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Time the body of a window."""
        self._step = step
        noise.clear()
        begin = time.perf_counter()
        yield
        if step == self.recorded:
            self._figures["step_seconds"] = time.perf_counter() - begin
            self._figures["noise"] = sum(noise)
            self._figures["began"] = begin
        self._step = 0

    @contextmanager
    def plant(self) -> Iterator[None]:
        """Time the planted part. Only the recorded step counts."""
        begin = time.perf_counter()
        yield
        self.planted(time.perf_counter() - begin)

    def planted(self, seconds: float) -> None:
        """Add seconds that the job has measured itself."""
        if self._step == self.recorded:
            self._figures["planted"] += seconds

    def ranks(self, count: int, main: Callable[[Job], None]) -> list[dict[str, float]]:
        """Run `main` in processes that are ranks, as torchrun starts them, and return their figures. They are forked: torch is imported once."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        launched = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=self._be_rank, args=(rank, launched, main)) for rank in range(count)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        parts = [self.out / f"rank-{rank}.json" for rank in range(count)]
        self.codes = [process.exitcode for process in processes]
        return [json.loads(part.read_text()) if part.exists() else {} for part in parts]

    def _be_rank(self, rank: int, launched: dict[str, str], main: Callable[[Job], None]) -> None:
        os.environ.update(
            launched, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=launched["WORLD_SIZE"]
        )
        self.rank = rank
        main(self)
        (self.out / f"rank-{rank}.json").write_text(json.dumps(self._figures))

    def write(
        self,
        topic: str | None,
        *,
        process: str | None = None,
        region: str | None = None,
        seconds: float | None = None,
        costs: float | None = None,
        why: str | None = None,
        parts: list[dict[str, float]] | None = None,
        true: list[tuple[str, str | None]] | None = None,
    ) -> None:
        """Write the truth: what was planted and where, and what else is true of this job with and without the fault.

        Args:
            topic: the kind of the fault; None: a job that never has one.
            process: the label of the process that has the fault.
            region: the innermost region that contains the fault.
            seconds: how long the fault lasted, or without it the same part of the job; None: as `plant` measured in this process.
            costs: how much longer the step is because of it; None: by these seconds.
            why: a word that the reason has to contain.
            parts: the figures of the ranks, where there are several.
            true: other findings that are true: (topic, region), region None: anywhere.
        """
        parts = [part for part in parts or [self._figures] if part]
        if seconds is None and topic not in (None, "coverage", "short"):  # those have no seconds
            seconds = self._figures["planted"]
        # the profiler starts later in one rank than in another one, which waits for it in a collective
        began = [part["began"] for part in parts if part["began"]] or [0.0]
        apart = max(began) - min(began)
        truth = {
            "topic": topic if self.faulty else None,
            "process": process,
            "region": region,
            "seconds": seconds,
            "costs": costs,
            "why": why,
            "step": self.recorded,
            "step_seconds": max(part["step_seconds"] for part in parts),
            "noise_seconds": max(part["noise"] for part in parts) + apart,
            "true": true or [],
        }
        (self.out / "truth.json").write_text(json.dumps(truth, indent=1))


noise: list[float] = []
"""By how much each computation of this step took longer than it was meant to: the machine was busy."""


def compute(seconds: float) -> None:
    """Compute for so many seconds of wall time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))
    noise.append(time.perf_counter() - end)
